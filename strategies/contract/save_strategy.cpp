#include "strategies/contract/save_strategy.h"

#include <algorithm>

namespace dckpt {

void ItemSource::part(const WriteItem& item, std::uint64_t begin,
                      const std::function<void(ByteView)>& sink) {
  const std::uint64_t end = std::min(item.nbytes, begin + kPartBytes);
  std::uint64_t position = 0;
  tensor(item, [&](ByteView piece) {
    const std::uint64_t first = std::clamp(begin, position, position + piece.size());
    const std::uint64_t last = std::clamp(end, first, position + piece.size());
    if (first < last) sink(piece.subspan(first - position, last - first));
    position += piece.size();
  });
}

void SaveStrategy::write_index(Storage&, const std::string&, const Metadata&,
                               const CommonState*) const {}

}  // namespace dckpt
