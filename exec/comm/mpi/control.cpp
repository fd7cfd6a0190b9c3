#include "exec/comm/mpi/control.hpp"

#include <fmt/format.h>
#include <signal.h>

namespace wt::exec {

namespace {

using std::chrono::milliseconds;

/// A rank that does not say what it is doing within this time is stopped, dead or cut off.
constexpr milliseconds kAnswerTime{1000};

/// Open MPI ends a job whose rank died by SIGTERM, and by SIGKILL a second later. Within it the others say what they know.
constexpr milliseconds kLastWords{300};
volatile sig_atomic_t told_to_end = 0;
void note_termination(int) { told_to_end = 1; }

/// A letter's first byte says what it is.
constexpr char kStop = 'S', kAsk = 'Q', kAnswer = 'A';

std::string list(const std::vector<int>& ranks) {
  std::string out;
  for (const int r : ranks) out += fmt::format("{}{}", out.empty() ? "" : ", ", r);
  return out;
}

}  // namespace

std::string mpi_error(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

Control::Control(MPI_Comm comm, int rank, int size, milliseconds timeout)
    : rank_(rank), size_(size), timeout_(timeout), comm_(comm), answers_(static_cast<size_t>(size)) {
  struct sigaction ours {
  }, before{};
  ours.sa_handler = note_termination;
  ours.sa_flags = SA_RESTART;
  // Whoever has made other arrangements keeps them.
  catches_ = ::sigaction(SIGTERM, nullptr, &before) == 0 && before.sa_handler == SIG_DFL &&
             ::sigaction(SIGTERM, &ours, nullptr) == 0;
  thread_ = std::thread([this] { listen(); });
}

Control::~Control() {
  over_ = true;
  thread_.join();
  if (catches_) ::signal(SIGTERM, SIG_DFL);
}

Diagnostic Control::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void Control::on_stop(std::function<void(const Diagnostic&)> hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

void Control::stop(const Diagnostic& why) {
  if (!keep(why)) return;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) post(r, kStop + why.where + '\0' + why.what + '\0' + why.hint);
}

void Control::flush(milliseconds most) {
  const auto until = Clock::now() + most;
  while (Clock::now() < until) {
    {
      const std::lock_guard lock(post_mutex_);
      if (outbox_.empty()) return;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

Control::Place Control::begin_wait(Waiting w) {
  const std::lock_guard lock(mutex_);
  return waiting_.insert(waiting_.end(), std::move(w));
}

void Control::end_wait(Place place) {
  const std::lock_guard lock(mutex_);
  waiting_.erase(place);
}

Diagnostic Control::explain(std::string_view op, const std::vector<int>& peers) {
  ask_all();
  const auto until = Clock::now() + kAnswerTime;
  auto all_answered = [&] {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < size_; ++r)
      if (r != rank_ && !answers_[static_cast<size_t>(r)]) return false;
    return true;
  };
  while (Clock::now() < until && !stopped() && !all_answered()) std::this_thread::sleep_for(milliseconds(2));
  Diagnostic d;
  d.where = fmt::format("rank {}, op '{}'", rank_, op);
  d.what = fmt::format("waited {:.1f} s for rank {}", std::chrono::duration<double>(timeout_).count(), list(peers));
  d.hint = "a rank that is slow, stopped or stuck; --timeout allows more";
  const std::lock_guard lock(mutex_);
  d.what += said();
  return d;
}

void Control::ask_all() {
  {
    const std::lock_guard lock(mutex_);
    for (auto& a : answers_) a.reset();
  }
  for (int r = 0; r < size_; ++r)
    if (r != rank_) post(r, std::string(1, kAsk));
}

std::string Control::said() const {
  std::vector<int> silent;
  std::string told;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const auto& answer = answers_[static_cast<size_t>(r)];
    if (!answer)
      silent.push_back(r);
    else
      told += fmt::format("; rank {} {}", r, *answer);
  }
  if (silent.empty()) return told;
  return fmt::format("; rank {} do{} not answer: stopped, dead or cut off", list(silent),
                     silent.size() == 1 ? "es" : "") +
         told;
}

void Control::last_words() {
  if (!ends_) {
    ends_ = Clock::now();
    ask_all();
  }
  if (stopped() || Clock::now() - *ends_ < kLastWords) return;
  Diagnostic d;
  {
    const std::lock_guard lock(mutex_);
    d.where = fmt::format("rank {}", rank_) + (waiting_.empty() ? "" : fmt::format(", op '{}'", waiting_.front().op));
    d.what = "was told to end (SIGTERM)" + said();
  }
  d.hint = "a launcher ends the job when one of its ranks has died";
  tell_device(d);
}

bool Control::keep(const Diagnostic& why) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return false;
  reason_ = why;
  stopped_.store(true, std::memory_order_release);
  return true;
}

void Control::tell_device(const Diagnostic& why) {
  if (!keep(why)) return;
  std::function<void(const Diagnostic&)> hook;
  {
    const std::lock_guard lock(mutex_);
    hook = hook_;
  }
  if (hook) hook(why);
}

void Control::post(int to, std::string text) {
  const std::lock_guard lock(post_mutex_);
  Letter& l = outbox_.emplace_back(Letter{std::move(text), MPI_REQUEST_NULL});
  MPI_Isend(l.text.data(), static_cast<int>(l.text.size()), MPI_CHAR, to, 0, comm_, &l.request);
}

void Control::listen() {
  while (!over_) {
    int there = 0;
    MPI_Status from;
    MPI_Iprobe(MPI_ANY_SOURCE, 0, comm_, &there, &from);
    if (there) {
      int size = 0;
      MPI_Get_count(&from, MPI_CHAR, &size);
      std::string text(static_cast<size_t>(size), '\0');
      MPI_Recv(text.data(), size, MPI_CHAR, from.MPI_SOURCE, 0, comm_, MPI_STATUS_IGNORE);
      read(from.MPI_SOURCE, text);
      continue;
    }
    {
      const std::lock_guard lock(post_mutex_);
      std::erase_if(outbox_, [](Letter& l) {
        int sent = 0;
        MPI_Test(&l.request, &sent, MPI_STATUS_IGNORE);
        return sent != 0;
      });
    }
    if (told_to_end) last_words();
    std::this_thread::sleep_for(milliseconds(5));
  }
}

void Control::read(int from, const std::string& text) {
  if (text.empty()) return;
  if (text[0] == kAsk) {
    post(from, kAnswer + doing());
  } else if (text[0] == kAnswer) {
    const std::lock_guard lock(mutex_);
    answers_[static_cast<size_t>(from)] = text.substr(1);
  } else if (text[0] == kStop) {
    const size_t first = text.find('\0'), second = text.find('\0', first + 1);
    const Diagnostic why{text.substr(1, first - 1), text.substr(first + 1, second - first - 1),
                         text.substr(second + 1)};
    tell_device(why);
  }
}

std::string Control::doing() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  for (const Waiting& w : waiting_)
    out += fmt::format("{} for rank {} in op '{}' ({:.1f} s)", out.empty() ? "waits" : " and", list(w.peers), w.op,
                       std::chrono::duration<double>(Clock::now() - w.since).count());
  return out.empty() ? "waits for nobody" : out;
}
}  // namespace wt::exec
