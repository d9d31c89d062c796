#include "operations/convert/workers/worker_survey.h"

#include <algorithm>
#include <map>
#include <utility>

#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "operations/convert/workers/worker_pool.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

constexpr double kNanosecond = 1e-9;
constexpr std::int64_t kMinute = std::int64_t{60} * 1'000'000'000;
constexpr const char* kPublication = "publication";

SurveyedWorker worker_of(const std::string& token) {
  TokenOwner owner = owner_of(token).value_or(TokenOwner{});
  return {.host = std::move(owner.host), .process = owner.process};
}

/// Returns whether the owner of a claim gives signs of life.
bool is_current(const ClaimText& claim, std::int64_t modified, std::int64_t now) {
  return now - modified <= std::chrono::nanoseconds(claim.period).count() &&
         !made_by_ended_process(claim.token);
}

/// Reads the files of a pool's directory.
class Survey {
 public:
  explicit Survey(const Location& directory)
      : owner_(directory.directory()),
        storage_(*owner_),
        job_(read_job(directory)),
        now_(storage_time(storage_, kProbePrefix + staging_token())) {
    const std::vector<FileInfo> entries = storage_.list("");
    read_notes(storage_, entries, notes_);
    for (const FileInfo& entry : entries) files_.emplace(entry.name, entry);
  }

  WorkerSurvey run() {
    survey_.destination = job_.destination;
    survey_.units = job_.units.size();
    for (std::size_t i = 0; i < job_.units.size(); ++i) look_at_unit(i);
    look_at_claims(kClaimOfPublication, kPublication);
    const auto published = files_.find(kPublishedFile);
    survey_.published = published != files_.end();
    const std::int64_t end = survey_.published ? published->second.modified : now_;
    survey_.seconds = seconds_between(files_.at(kJobFile).modified, end);
    const double window = std::min(survey_.seconds, kMinute * kNanosecond);
    if (window > 0) survey_.bytes_per_second = static_cast<double>(lately_) / window;
    if (!survey_.published && survey_.bytes_per_second > 0)
      survey_.seconds_left =
          static_cast<double>(survey_.bytes - survey_.bytes_done) / survey_.bytes_per_second;
    for (auto& [token, worker] : workers_) survey_.workers.push_back(std::move(worker));
    return std::move(survey_);
  }

 private:
  static double seconds_between(std::int64_t begin, std::int64_t end) {
    return static_cast<double>(std::max<std::int64_t>(end - begin, 0)) * kNanosecond;
  }

  SurveyedWorker& worker(const std::string& token) {
    return workers_.try_emplace(token, worker_of(token)).first->second;
  }

  void look_at_unit(std::size_t unit) {
    const std::uint64_t bytes = job_.units[unit].bytes;
    survey_.bytes += bytes;
    const auto done = notes_.done.find(job_.units[unit].name);
    if (done == notes_.done.end()) return look_at_claims(claim_prefix(unit), job_.units[unit].name);
    ++survey_.units_done;
    survey_.bytes_done += bytes;
    if (now_ - done->second.at < kMinute) lately_ += bytes;
    const std::string& path = done->second.path;
    if (path.empty()) return;
    const std::string_view folder = std::string_view(path).substr(0, path.find('/'));
    SurveyedWorker& by = worker(std::string(worker_of_folder(folder)));
    ++by.done;
    by.bytes += bytes;
  }

  void look_at_claims(const std::string& prefix, const std::string& unit) {
    for (auto file = files_.lower_bound(prefix);
         file != files_.end() && file->first.starts_with(prefix); ++file) {
      const ClaimText claim =
          parse_claim(read_file(*storage_.open(file->first), kMaxPoolFileBytes));
      if (claim.token.empty()) continue;
      SurveyedWorker& by = worker(claim.token);
      by.state = is_current(claim, file->second.modified, now_) ? SurveyedWorker::State::kWorking
                                                                : SurveyedWorker::State::kSilent;
      by.units.push_back(unit);
      by.seconds = std::max(by.seconds, seconds_between(claim.since, now_));
    }
  }

  const std::shared_ptr<Storage> owner_;
  Storage& storage_;
  const PooledJob job_;
  const std::int64_t now_;
  std::map<std::string, FileInfo> files_;
  PoolNotes notes_;
  std::map<std::string, SurveyedWorker> workers_;  ///< by token
  std::uint64_t lately_ = 0;
  WorkerSurvey survey_;
};

/// Reads the job; returns nothing if it is damaged.
std::optional<PooledJob> job_if_readable(const Location& directory) {
  try {
    return read_job(directory);
  } catch (const CheckpointError& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return std::nullopt;
  }
}

/// Throws if a worker holds a claim.
void require_idle(const Location& directory) {
  const std::optional<SurveyedWorker> worker = worker_at_work(directory);
  if (!worker) return;
  throw_error(ErrorCode::kAborted, {.file = directory.display()},
              "process {} of host {} is at work in this pool; stop it first", worker->process,
              quote(worker->host));
}

/// Removes what the workers have written beside the destination and not published.
void remove_unpublished(const PooledJob& job, const Storage& pool, const Location& directory) {
  const Location target(job.destination);
  const auto staging = parse_hidden_sibling(job.staging);
  if (!staging || staging->name != target.name() || !staging->token.starts_with(kPoolToken))
    throw_error(ErrorCode::kCorrupt, {.file = directory.display()},
                "the job names a directory that is not beside its destination, so nothing "
                "is removed; remove the pool by hand");
  std::vector<std::string> unpublished{job.staging};
  for (const std::string& token : publishers_in(pool)) {
    if (pool.stat(kPublishedFile)) break;
    for (const char* const purpose : {"saving", "interrupted"})
      unpublished.push_back(to_string(HiddenSibling{target.name(), purpose, token}));
  }
  for (const std::string& name : unpublished) target.storage()->remove_all(name);
}

}  // namespace

WorkerSurvey survey_workers(const Location& directory) {
  return Survey(directory).run();
}

std::optional<SurveyedWorker> worker_at_work(const Location& directory) {
  const std::shared_ptr<Storage> pool = directory.directory();
  if (!directory.is_directory() || !pool->stat(kJobFile)) return std::nullopt;
  const std::int64_t now = storage_time(*pool, kProbePrefix + staging_token());
  for (const FileInfo& entry : pool->list("")) {
    if (entry.name.find(".claim-") == entry.name.npos) continue;
    try {
      const ClaimText claim = parse_claim(read_file(*pool->open(entry.name), kMaxPoolFileBytes));
      if (!claim.token.empty() && is_current(claim, entry.modified, now))
        return worker_of(claim.token);
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kIncomplete) throw;  // else it was given back just now
    }
  }
  return std::nullopt;
}

void remove_workers(const Location& directory) {
  const std::optional<PooledJob> job = job_if_readable(directory);
  const std::shared_ptr<Storage> pool = directory.directory();
  require_idle(directory);
  if (job)
    remove_unpublished(*job, *pool, directory);
  else
    log_warning(
        "the job of this pool cannot be read, so what its workers have written and not published "
        "stays: a folder '.NAME.saving-workers-…' beside the destination NAME; remove it by hand");
  for (const FileInfo& entry : pool->list("")) {
    if (entry.name != kJobFile && is_pool_file(entry.name)) pool->remove_all(entry.name);
  }
  pool->remove_all(kJobFile);  // last: until then the rest can be found
  if (pool->list("").empty()) directory.storage()->remove_all(directory.name());
}

}  // namespace dckpt
