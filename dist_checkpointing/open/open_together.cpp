// The protocol by which ranks open a checkpoint so that its metadata are read once, not by each:
//
//   1. Rank 0 opens it, and records the storage's answers and the bytes that it reads from files.
//      If that fails, every rank throws its error.
//   2. Rank 0 broadcasts the head of the record, which is everything but the bytes, and its note.
//   3. Every other rank checks the files that rank 0 has read. If all of them have the same size
//      and time at its own location, they are the same files, or equivalent copies. A rank with
//      other files (a copy on a disk of its own, another location, a storage without times) opens
//      them itself. Whether they belong to the same save is compared later, as the ranks'
//      arguments are.
//   4. Unless all ranks have other files, rank 0 broadcasts the bytes, in pieces.
//   5. The other ranks open it, from the record or from their files. Data that the record lacks is
//      read from the files. If that fails on any rank, every rank throws the error.
//
// Tensors and objects are read later, when the record is gone.

#include "dist_checkpointing/open/open_together.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/log_silence.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/comm/phase_label.h"
#include "strategies/storage/recorded.h"

namespace dckpt {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

constexpr const char* kAttempt = "opening the checkpoint";

/// Calls `part` for the bytes of the views that form the piece, in order.
void for_each_part(std::span<const MutableByteView> views, std::size_t& view, std::size_t& at,
                   std::size_t piece, const std::function<void(MutableByteView)>& part) {
  while (piece > 0) {
    const std::size_t length = std::min(piece, views[view].size() - at);
    part(views[view].subspan(at, length));
    piece -= length;
    at += length;
    if (at == views[view].size()) {
      ++view;
      at = 0;
    }
  }
}

/// Fills the views with those of rank 0. `total` is their length, even if `views` is empty because
/// the bytes are not needed.
void broadcast_contents(Communicator& comm, std::span<const MutableByteView> views,
                        std::size_t total) {
  std::size_t view = 0;
  std::size_t at = 0;
  for (std::size_t left = total; left > 0;) {
    const std::size_t size = std::min(left, kPieceBytes);
    Bytes piece;
    if (comm.rank() == 0) {
      piece.reserve(size);
      for_each_part(views, view, at, size, [&](MutableByteView part) {
        piece.insert(piece.end(), part.begin(), part.end());
      });
    }
    piece = comm.broadcast(piece, 0);
    if (piece.size() != size)
      throw_error(ErrorCode::kCorrupt, "rank 0 has sent a piece of another length");
    if (comm.rank() != 0 && !views.empty()) {
      ByteView rest = piece;
      for_each_part(views, view, at, size, [&](MutableByteView part) {
        std::copy_n(rest.begin(), part.size(), part.begin());
        rest = rest.subspan(part.size());
      });
    }
    left -= size;
  }
}

Bytes with_note(const std::string& note, ByteView head) {
  Bytes message;
  WireWriter(message).text(note);
  message.insert(message.end(), head.begin(), head.end());
  return message;
}

}  // namespace

void open_together(const Location& location, Communicator& comm,
                   const std::function<void(const Location&, std::string& note)>& open) {
  const PhaseLabel label(kAttempt);
  std::string note;
  if (comm.size() == 1) return Heartbeat(comm).agree(kAttempt, [&] { open(location, note); });
  const bool reads = comm.rank() == 0;
  auto record = std::make_shared<StorageRecord>();
  const auto through_record = [&] {
    return Location(recorded_storage(location.storage(), record), location.name());
  };
  Heartbeat(comm).agree(kAttempt, [&] {
    if (reads) open(through_record(), note);
  });

  const Bytes head = comm.broadcast(reads ? with_note(note, record->head()) : Bytes{}, 0);
  std::vector<MutableByteView> contents;
  bool is_mine = false;
  std::size_t total = 0;
  agree(comm, kAttempt, [&] {
    if (!reads) {
      WireReader reader(head, "what rank 0 has read (do all ranks run the same build?)");
      note = reader.text();
      record = std::make_shared<StorageRecord>(reader.rest());
    }
    total = record->contents_size();
    is_mine = !reads && record->is_of(location.storage());
    if (is_mine || reads) contents = record->contents();
  });
  const std::array<std::int64_t, 1> wanted{is_mine ? 1 : 0};
  if (comm.all_reduce(wanted, ReduceOp::kMax).front() == 1)
    broadcast_contents(comm, contents, total);
  if (reads) record->end();

  Heartbeat(comm).agree(kAttempt, [&] {
    if (reads) return;
    if (!is_mine) return open(location, note);
    const LogSilence rank_0_has_said_it;
    open(through_record(), note);
  });
  record->end();
}

}  // namespace dckpt
