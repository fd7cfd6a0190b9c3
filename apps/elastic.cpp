#include "apps/elastic.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "apps/command.hpp"
#include "exec/checkpoint/manifest.hpp"

namespace wt::apps {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMarks = "WINDTUNNEL_MARKS";  // environment of the ranks

// --------------------------------------------------------------------------------------------------- a rank's side

// Read by a signal handler: fixed storage.
char end_mark[4096] = "";

void touch(const char* path) {
  if (const int fd = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666); fd >= 0) ::close(fd);
}

extern "C" void on_terminate(int) {
  if (end_mark[0]) touch(end_mark);
  ::_exit(kMachineFault);
}

// --------------------------------------------------------------------------------------------- the supervisor's side

std::atomic<pid_t> child{0};
std::atomic<int> told_to_end{0};

extern "C" void pass_on(int signal) {
  told_to_end = signal;
  if (const pid_t p = child; p > 0) ::kill(p, signal);
}

struct Ended {
  int code = 0;
  bool by_signal = false;
};

Ended start_and_wait(const std::vector<std::string>& words, const std::string& marks) {
  std::vector<char*> argv;
  for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
  argv.push_back(nullptr);
  const pid_t p = ::fork();
  if (p == 0) {
    ::setenv(kMarks, marks.c_str(), 1);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  if (p < 0) return {kMachineFault, false};
  child = p;
  if (told_to_end != 0) ::kill(p, told_to_end);
  int status = 0;
  while (::waitpid(p, &status, 0) < 0 && errno == EINTR) {}
  child = 0;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), WIFSIGNALED(status)};
}

std::vector<std::string> launcher_words(const std::string& launcher, int64_t ranks) {
  std::vector<std::string> words;
  std::istringstream in(launcher);
  for (std::string w; in >> w;) words.push_back(w);
  const std::string name = words.empty() ? "" : fs::path(words[0]).filename().string();
  if (name == "srun") {
    // Else srun waits for the others of a rank that was killed, and they for their timeout.
    words.insert(words.end(), {"-n", std::to_string(ranks), "--kill-on-bad-exit=1"});
  } else {
    words.insert(words.end(), {"-np", std::to_string(ranks), "--oversubscribe", "-x", kMarks});
    // Between SIGTERM and SIGKILL Open MPI gives a rank one second: on a busy machine too little to leave its mark, and a
    // rank that lives would count as dead. It always waits that long, so this is also what a restart costs.
    constexpr const char* kPatience = "odls_base_sigkill_timeout";
    if (launcher.find(kPatience) == std::string::npos) words.insert(words.end(), {"--mca", kPatience, "5"});
    if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  }
  return words;
}

int64_t newest_step(const std::string& root) {
  const auto all = exec::list_checkpoints(root);
  return all.empty() ? -1 : all[0].step;
}

void tell(const std::string& text) { fmt::print(stderr, "windtunnel: elastic: {}\n", text); }

}  // namespace

void mark_rank(uint32_t rank) {
  const char* marks = std::getenv(kMarks);
  if (!marks) return;
  const std::string begun = fmt::format("{}/rank-{}", marks, rank), ended = begun + ".ended";
  if (ended.size() >= sizeof end_mark) return;
  std::memcpy(end_mark, ended.c_str(), ended.size() + 1);
  // Whatever ends this process but a kill: the launcher, or the MPI library when it finds that another rank is gone.
  struct sigaction action {};
  action.sa_handler = on_terminate;
  for (const int s : {SIGTERM, SIGHUP, SIGABRT}) ::sigaction(s, &action, nullptr);
  std::atexit(mark_end);
  if (std::FILE* f = std::fopen(begun.c_str(), "w")) {
    fmt::print(f, "{}\n", ::getpid());
    std::fclose(f);
  }
}

void mark_end() {
  if (end_mark[0]) touch(end_mark);
}

int run_elastic(const ElasticOptions& o) {
  std::array<char, 4096> self{};
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0)
    return fail({{"--elastic", "cannot find this program's own file", ""}}, kMachineFault);
  struct sigaction action {};
  action.sa_handler = pass_on;
  for (const int s : {SIGINT, SIGTERM}) ::sigaction(s, &action, nullptr);

  int64_t ranks = o.ranks, without_progress = 0;
  for (int64_t start = 0;; ++start) {
    const auto words = o.words(ranks);
    if (!words) return fail({{"--elastic", fmt::format("no plan for {} ranks", ranks), ""}}, kDoesNotFit);
    const std::string marks = fmt::format("{}/.ranks/{}", o.root, start);
    std::error_code code;
    fs::remove_all(marks, code);
    fs::create_directories(marks, code);
    if (code) return fail({{marks, fmt::format("cannot be made: {}", code.message()), ""}}, kMachineFault);
    const int64_t before = newest_step(o.root);

    std::vector<std::string> all = launcher_words(o.launcher, ranks);
    all.emplace_back(self.data());
    all.insert(all.end(), words->begin(), words->end());
    const Ended ended = start_and_wait(all, marks);
    if (ended.code == 0) return kOk;
    if (told_to_end != 0) return ended.code;
    if (ended.code == 127)
      return fail({{"--launcher", fmt::format("'{}' cannot be started", o.launcher), "mpirun or srun"}}, kMachineFault);

    int64_t begun = 0, in_order = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      begun += fs::exists(fmt::format("{}/rank-{}", marks, r), code);
      in_order += fs::exists(fmt::format("{}/rank-{}.ended", marks, r), code);
    }
    if (begun == 0) return fail({{"--elastic", "no rank could be started", ""}}, kMachineFault);
    // What the user said wrong is wrong again.
    if (in_order == ranks && (ended.code == kBadInput || ended.code == kDoesNotFit)) return ended.code;
    const int64_t saved = newest_step(o.root);
    without_progress = saved > before ? 0 : without_progress + 1;
    constexpr int64_t kPatience = 3;
    if (start >= o.restarts || without_progress >= kPatience) {
      tell(start >= o.restarts ? fmt::format("given up after {} restarts", start)
                               : fmt::format("given up: {} starts in a row saved nothing", without_progress));
      return kMachineFault;
    }
    const int64_t left = in_order;
    int64_t next = left;
    while (next > 0 && !o.words(next)) --next;
    if (next == 0) {
      tell(fmt::format("{} of {} ranks died; no plan for the {} that are left", ranks - left, ranks, left));
      return kMachineFault;
    }
    tell(fmt::format("{} of {} ranks died; going on {} with {}{}", ranks - left, ranks,
                     saved < 0 ? std::string("from the start") : fmt::format("from step {}", saved), next,
                     next < left ? fmt::format(" of the {} that are left", left) : ""));
    ranks = next;
  }
}

}  // namespace wt::apps
