// Every rank writes its file, rank 0 gives the checkpoint its manifest and its name.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "exec/checkpoint/store.hpp"

namespace wt::exec {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPartial = ".partial";
constexpr int64_t kAlign = 64;

Diagnostic fault(RankId rank, const std::string& path, std::string what) {
  return {rank_and_file(rank.v, path), std::move(what), ""};
}

}  // namespace

/// One save under way.
struct Saver::Writing {
  SavedState state;  // asynchronous: its holdings are `holdings`
  std::vector<Holding> holdings;
  std::function<Status(size_t, void*)> read;
  std::string path, partial;
  std::atomic<bool> given_up = false;
  // Written by the thread, read after it was joined.
  Diagnostics own, whole;  // of this rank's file; rank 0: of the checkpoint
  std::atomic<bool> own_done = false;
  std::thread thread;

  ~Writing() {
    given_up = true;
    if (thread.joinable()) thread.join();
  }
};

Saver::Saver(SaverOptions options, Team team, Device& device)
    : options_(std::move(options)), team_(std::move(team)), device_(device) {
  while (options_.root.size() > 1 && options_.root.back() == '/') options_.root.pop_back();
}
Saver::~Saver() = default;

Status Saver::save(const SavedState& state) {
  if (auto before = finish(); !before) return before;
  auto w = std::make_unique<Writing>();
  w->path = checkpoint_path(options_.root, state.progress.step);
  w->partial = fmt::format("{}{}", w->path, kPartial);
  // Rank 0 makes the directory; the others write into it when they know that it is there and empty.
  Diagnostics made;
  if (team_.rank.v == 0) {
    std::error_code code;
    fs::create_directories(options_.root, code);
    if (!code)
      for (const fs::directory_entry& e : fs::directory_iterator(options_.root, code))
        if (is_checkpoint_name(e.path().filename().string(), kPartial)) remove_checkpoint(e.path().string());
    if (!code) fs::create_directory(w->partial, code);
    if (code) made.push_back(fault(team_.rank, w->partial, fmt::format("cannot be made: {}", code.message())));
  }
  if (auto there = team_.agree(made); !there) return there;

  w->state = state;
  if (options_.asynchronous) {
    w->holdings.assign(state.holdings.begin(), state.holdings.end());
    int64_t bytes = 0;
    for (const Holding& h : w->holdings)
      if (h.written) bytes += (h.operand.bytes() + kAlign - 1) / kAlign * kAlign;
    host_.resize(static_cast<size_t>(bytes));
    bytes = 0;
    Diagnostics copied;
    for (Holding& h : w->holdings) {
      if (!h.written) continue;
      char* to = host_.data() + bytes;
      if (auto s = device_.read(h.operand, to); !s) {
        copied = s.errors();
        break;
      }
      h.operand.data = to;
      bytes += (h.operand.bytes() + kAlign - 1) / kAlign * kAlign;
    }
    if (auto all = team_.agree(copied); !all) return all;
    w->state.holdings = w->holdings;
    w->read = [v = w.get()](size_t i, void* to) {
      const Operand& from = v->holdings[i].operand;
      std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
      return ok_status();
    };
    writing_ = std::move(w);
    writing_->thread = std::thread([this, v = writing_.get()] { write(*v); });
    return ok_status();
  }
  w->read = [this, &state](size_t i, void* to) { return device_.read(state.holdings[i].operand, to); };
  writing_ = std::move(w);
  // Rank 0's part would wait for a file that another rank could not write: the files first, then all agree, then the name.
  Writing& v = *writing_;
  write(v);
  return finish();
}

/// This rank's file; of an asynchronous save on rank 0 also the rest, as soon as the files of all ranks are there.
void Saver::write(Writing& w) const {
  const RankFileHead head{team_.rank.v, static_cast<uint32_t>(team_.size), w.state.plan_digest, w.state.progress.step};
  auto pieces =
      write_rank_file(fmt::format("{}/{}", w.partial, rank_file_name(head.rank)), head, w.state.holdings, w.read);
  if (!pieces) w.own = pieces.errors();
  w.own_done = true;
  if (team_.rank.v != 0 || !options_.asynchronous) return;
  const std::vector<std::string> names = [&] {
    std::vector<std::string> out;
    for (uint32_t r = 0; r < head.world; ++r) out.push_back(fmt::format("{}/{}", w.partial, rank_file_name(r)));
    return out;
  }();
  for (size_t next = 0; next < names.size();) {
    if (w.given_up) return;
    std::error_code code;
    if (fs::exists(names[next], code))
      ++next;
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (auto s = name_checkpoint(w.path, w.partial, head, w.state.progress, options_.keep); !s) w.whole = s.errors();
}

Status Saver::finish() {
  if (!writing_) return ok_status();
  Writing& w = *writing_;
  // Rank 0's thread waits for the files of all ranks: first hear whether all could be written.
  while (!w.own_done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Status files = team_.agree(w.own);
  if (files && !options_.asynchronous && team_.rank.v == 0) {
    const RankFileHead head{0, static_cast<uint32_t>(team_.size), w.state.plan_digest, w.state.progress.step};
    if (auto s = name_checkpoint(w.path, w.partial, head, w.state.progress, options_.keep); !s) w.whole = s.errors();
  }
  if (!files) w.given_up = true;
  if (w.thread.joinable()) w.thread.join();
  if (!files && team_.rank.v == 0) remove_checkpoint(w.partial);
  Status whole = files ? team_.agree(w.whole) : ok_status();
  writing_.reset();
  return files ? whole : files;
}

}  // namespace wt::exec
