#include "exec/checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/atomic_file.hpp"
#include "core/base/file.hpp"

namespace wt::exec {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPrefix = "step-", kReplaced = ".replaced", kFormat = "windtunnel checkpoint";
constexpr size_t kDigits = 12;

std::string dump(const Json& j) { return j.dump(1, ' ', false, Json::error_handler_t::replace); }

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

std::string checkpoint_path(const std::string& root, int64_t step) {
  return fmt::format("{}/{}{:0{}}", root, kPrefix, step, kDigits);
}

bool is_checkpoint_name(std::string_view name, std::string_view ending) {
  if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kDigits + ending.size()) return false;
  if (!name.ends_with(ending)) return false;
  return std::ranges::all_of(name.substr(kPrefix.size(), kDigits), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<FoundCheckpoint> list_checkpoints(const std::string& root) {
  std::vector<FoundCheckpoint> out;
  std::error_code code;
  for (fs::directory_iterator it(root, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (!is_checkpoint_name(name) && !is_checkpoint_name(name, kReplaced)) continue;
    std::error_code missing;
    if (!fs::exists(it->path() / "manifest.json", missing)) continue;
    int64_t step = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + kPrefix.size() + kDigits, step);
    out.push_back({it->path().string(), step});
  }
  // Newest first; of one step the one that was replaced last.
  std::sort(out.begin(), out.end(), [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    return a.step != b.step ? a.step > b.step : a.path.size() < b.path.size();
  });
  return out;
}

void remove_checkpoint(const std::string& path) {
  std::error_code ignored;
  fs::remove(path + "/manifest.json", ignored);
  fs::remove_all(path, ignored);
}

std::string print_manifest(const Manifest& m) {
  Json j;
  j["format"] = kFormat;
  j["version"] = kCheckpointVersion;
  j["plan_digest"] = fmt::format("{:016x}", m.plan_digest);
  const Progress& p = m.progress;
  j["progress"] = {{"step", p.step},
                   {"skipped", p.skipped},
                   {"samples", p.samples},
                   {"seed", p.seed},
                   {"learning_rate", p.learning_rate},
                   {"loss_scale", p.loss_scale},
                   {"good_steps", p.good_steps}};
  j["ranks"] = Json::array();
  for (uint32_t r = 0; r < m.ranks.size(); ++r)
    j["ranks"].push_back({{"file", rank_file_name(r)},
                          {"bytes", m.ranks[r].bytes},
                          {"pieces", Json::parse(print_index(m.ranks[r].pieces))}});
  j["crc32"] = crc_of(dump(j));
  return dump(j) + "\n";
}

Result<Manifest> parse_manifest(const std::string& text, const std::string& where) {
  auto fault = [&](std::string what, std::string hint = "the file is damaged") {
    return Diagnostic{where, std::move(what), std::move(hint)};
  };
  Manifest m;
  try {
    Json j = Json::parse(text);
    if (!j.is_object() || j.value("format", "") != kFormat) return fault("is not the manifest of a checkpoint", "");
    if (const auto version = j.at("version").get<int64_t>(); version != kCheckpointVersion)
      return fault(fmt::format("is of version {}", version),
                   fmt::format("this program reads version {}", kCheckpointVersion));
    const auto crc = j.at("crc32").get<uint32_t>();
    j.erase("crc32");
    if (crc_of(dump(j)) != crc) return fault("does not match its checksum");
    const auto digest = j.at("plan_digest").get<std::string>();
    if (std::from_chars(digest.data(), digest.data() + digest.size(), m.plan_digest, 16).ec != std::errc())
      return fault("has no plan digest");
    const Json& p = j.at("progress");
    m.progress = {p.at("step").get<int64_t>(),         p.at("skipped").get<int64_t>(),
                  p.at("samples").get<int64_t>(),      p.at("seed").get<uint64_t>(),
                  p.at("learning_rate").get<double>(), p.at("loss_scale").get<double>(),
                  p.at("good_steps").get<int64_t>()};
    for (const Json& r : j.at("ranks")) {
      auto pieces = parse_index(r.at("pieces").dump(), where);
      if (!pieces) return pieces.errors();
      m.ranks.push_back({r.at("bytes").get<int64_t>(), std::move(pieces.value())});
    }
  } catch (const Json::exception& e) { return fault(fmt::format("cannot be read: {}", e.what())); }
  return m;
}

Status name_checkpoint(const std::string& path, const std::string& partial, const RankFileHead& head,
                       const Progress& progress, int64_t keep) {
  auto fault = [&](const std::string& file, std::string what) {
    return Diagnostic{rank_and_file(head.rank, file), std::move(what), ""};
  };
  Manifest m;
  m.plan_digest = head.plan_digest;
  m.progress = progress;
  for (uint32_t r = 0; r < head.world; ++r) {
    RankFileHead expected = head;
    expected.rank = r;
    auto file = RankFile::open(fmt::format("{}/{}", partial, rank_file_name(r)), expected);
    if (!file) return file.errors();
    m.ranks.push_back({file.value().bytes(), file.value().pieces()});
  }
  const std::string manifest = partial + "/manifest.json";
  auto file = AtomicFile::create(manifest);
  if (!file) return fault(manifest, file.errors()[0].what);
  file.value().write(print_manifest(m));
  if (auto s = file.value().commit(Durability::disk); !s) return fault(manifest, s.errors()[0].what);

  const std::string replaced = fmt::format("{}{}", path, kReplaced);
  std::error_code code;
  if (fs::exists(path, code)) {  // this step was saved before
    fs::remove_all(replaced, code);
    fs::rename(path, replaced, code);
    if (code) return fault(path, fmt::format("cannot be replaced: {}", code.message()));
  }
  fs::rename(partial, path, code);
  if (code) return fault(path, fmt::format("cannot be named: {}", code.message()));
  if (auto s = sync_directory(parent_of(path)); !s) return fault(path, s.errors()[0].what);

  // The newest stay.
  int64_t seen = 0;
  for (const FoundCheckpoint& f : list_checkpoints(parent_of(path)))
    if (f.path == replaced || (f.path != path && ++seen >= std::max<int64_t>(1, keep))) remove_checkpoint(f.path);
  return ok_status();
}

}  // namespace wt::exec
