#include "core/base/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace wt {

namespace {
constexpr size_t kBuffer = 1 << 18;

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Diagnostic fault(const std::string& path, const char* call, int code) {
  return {path, fmt::format("cannot write: {}: {}", call, std::strerror(code)), ""};
}
}  // namespace

struct AtomicFile::Impl {
  std::string path;    // as given, for messages
  std::string target;  // with links followed
  std::string aside;   // empty: no name yet (O_TMPFILE), or written directly
  int fd = -1;
  bool direct = false, committed = false;
  std::string buffer;
  int failed = 0;  // errno of the first failed write
  const char* failed_call = "write";

  ~Impl() {
    if (fd >= 0) ::close(fd);
    if (!committed && !aside.empty()) ::unlink(aside.c_str());
  }

  void fail(const char* call) {
    if (failed) return;
    failed = errno;
    failed_call = call;
  }

  void put(std::string_view bytes) {
    while (!failed && !bytes.empty()) {
      const ssize_t n = ::write(fd, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0)
        fail("write");
      else
        bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

  void flush() {
    put(buffer);
    buffer.clear();
  }
};

AtomicFile::AtomicFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;
const std::string& AtomicFile::path() const { return impl_->path; }

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = impl->target = path;
  if (path.empty()) return Diagnostic{"output", "an empty file name", "give a path"};
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0) {
    if (S_ISDIR(st.st_mode)) return Diagnostic{path, "cannot write: is a directory", "give a file"};
    if (!S_ISREG(st.st_mode)) {
      impl->direct = true;
      impl->fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      if (impl->fd < 0) return fault(path, "open", errno);
    } else {
      if (::access(path.c_str(), W_OK) != 0) return fault(path, "open", errno);
      if (char* real = ::realpath(path.c_str(), nullptr)) {
        impl->target = real;
        std::free(real);
      }
    }
  }
  if (!impl->direct) {
#ifdef O_TMPFILE
    impl->fd = ::open(directory_of(impl->target).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
#endif
    if (impl->fd < 0) {
      const std::string aside = fmt::format("{}.part{}", impl->target, ::getpid());
      impl->fd = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
      if (impl->fd < 0) return fault(path, "open", errno);
      impl->aside = aside;
    }
  }
  impl->buffer.reserve(kBuffer);
  return AtomicFile(std::move(impl));
}

void AtomicFile::write(std::string_view bytes) {
  if (impl_->buffer.size() + bytes.size() > kBuffer) impl_->flush();
  if (bytes.size() > kBuffer)
    impl_->put(bytes);
  else
    impl_->buffer.append(bytes);
}

Status AtomicFile::commit(Durability durability) {
  Impl& f = *impl_;
  WT_CHECK(f.fd >= 0, "commit called twice for {}", f.path);
  f.flush();
  const bool durable = durability == Durability::disk && !f.direct;
  if (!f.failed && durable && ::fsync(f.fd) != 0) f.fail("fsync");
  if (!f.failed && !f.direct && f.aside.empty()) {  // give the unnamed file a name
    const std::string aside = fmt::format("{}.part{}", f.target, ::getpid());
    ::unlink(aside.c_str());
    if (::linkat(AT_FDCWD, fmt::format("/proc/self/fd/{}", f.fd).c_str(), AT_FDCWD, aside.c_str(), AT_SYMLINK_FOLLOW) !=
        0) {
      f.fail("link");
    } else {
      f.aside = aside;
    }
  }
  if (::close(f.fd) != 0) f.fail("close");
  f.fd = -1;
  if (!f.failed && !f.direct && ::rename(f.aside.c_str(), f.target.c_str()) != 0) f.fail("rename");
  if (f.failed) return fault(f.path, f.failed_call, f.failed);
  f.committed = true;
  return durable ? sync_directory(directory_of(f.target)) : ok_status();
}

Status sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fault(path, "open", errno);
  const int code = ::fsync(fd) != 0 ? errno : 0;
  ::close(fd);
  if (code != 0) return fault(path, "fsync", code);
  return ok_status();
}

}  // namespace wt
