#include "operations/convert/interrupted.h"

#include <string_view>
#include <utility>
#include <vector>

#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "operations/convert/workers/pool_notes.h"
#include "operations/convert/workers/pooled_copy.h"
#include "operations/convert/workers/worker_pool.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

/// Returns whether a file is the journal that earlier builds kept in place of notes.
bool is_journal(std::string_view name) {
  return name.starts_with(".conversion-") && name.ends_with(".journal");
}

/// Looks through the leftovers of one target.
class Search {
 public:
  Search(const Location& target, const ConversionFacts& facts, const ConversionFacts& shared)
      : target_(target), facts_(facts), shared_facts_(shared) {}

  void look_at(const std::string& directory) {
    const std::shared_ptr<Storage> storage = Location(target_.storage(), directory).directory();
    if (const auto pool = pool_of(*target_.storage(), directory)) return look_at(directory, *pool);
    const std::vector<FileInfo> entries = storage->list("");
    for (const FileInfo& entry : entries) {
      if (is_journal(entry.name)) journal_ = storage->display_path(entry.name);
    }
    PoolNotes notes;
    read_notes(*storage, entries, notes);
    if (notes.facts.empty()) return;  // it ended before it noted anything
    consider({.directory = directory}, notes, notes.facts, facts_,
             "convert without --resume, which removes what it had finished");
  }

  std::optional<Interrupted> take() {
    if (best_) return std::move(best_);
    if (!instead_.empty())
      throw_error(ErrorCode::kMismatch, {.file = target_.display()},
                  "the interrupted conversion was another one; repeat it as "
                  "it was, or {}. What differs:{}",
                  instead_, others_);
    if (!journal_.empty())
      throw_error(ErrorCode::kUnsupported, {.file = journal_},
                  "an earlier build of dckpt has left this journal of an interrupted "
                  "conversion, which only that build can resume; do so with it, or "
                  "convert without --resume, which removes what it had finished");
    return std::nullopt;
  }

 private:
  void look_at(const std::string& directory, const Location& pool) {
    refuse_earlier_pool(pool);
    if (!pool.is_directory() || !pool.directory()->stat(kJobFile)) return;
    require_idle(target_, pool);
    PoolNotes notes;
    read_notes(*pool.directory(), pool.directory()->list(""), notes);
    consider({.directory = directory, .pool = pool}, notes, read_job(pool).facts, shared_facts_,
             str_format("remove its pool (dckpt workers {} --remove) and convert without --resume",
                        quote(pool.display())));
  }

  void consider(Interrupted left, const PoolNotes& notes, const ConversionFacts& then,
                const ConversionFacts& now, std::string instead) {
    if (then != now) {
      others_ += differences(then, now);
      instead_ = std::move(instead);
      return;
    }
    for (const auto& [name, unit] : notes.done) {
      left.files += unit.path.empty() ? 0 : 1;
      left.bytes += unit.size;
    }
    if (!best_ || left.files > best_->files) best_ = std::move(left);
  }

  const Location& target_;
  const ConversionFacts& facts_;
  const ConversionFacts& shared_facts_;
  std::optional<Interrupted> best_;
  std::string others_, instead_;
  std::string journal_;
};

}  // namespace

std::optional<Interrupted> find_interrupted(const Location& target, const ConversionFacts& facts,
                                            const ConversionFacts& shared) {
  Search search(target, facts, shared);
  for (const std::string& directory : unfinished_attempts(target)) search.look_at(directory);
  for (const std::string& directory : pool_directories(target)) search.look_at(directory);
  return search.take();
}

}  // namespace dckpt
