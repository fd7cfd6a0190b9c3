#include "core/spec/read.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/base/file.hpp"
#include "core/spec/data_dir.hpp"
#include "core/spec/foreign.hpp"
#include "core/spec/frameworks.hpp"
#include "core/spec/hf_config.hpp"
#include "core/spec/key_places.hpp"
#include "core/spec/map_reader.hpp"

namespace wt {

using tree::Entry;
using tree::Node;
using tree::Place;
using tree::Source;
namespace fs = std::filesystem;

namespace {

// ------------------------------------------------------------------------------------------------ references

enum class Kind : uint8_t { model, cluster, device };

struct KindWords {
  std::string_view word, folder;
};
constexpr KindWords words_of(Kind k) {
  switch (k) {
    case Kind::model: return {"model", "models"};
    case Kind::cluster: return {"cluster", "cluster_specs"};
    case Kind::device: return {"device", "cluster_specs/devices"};
  }
  return {};
}

std::shared_ptr<const Source> file_source(const std::string& path) {
  return std::make_shared<const Source>(Source{path, fs::path(path).parent_path().string(), false});
}

bool ends_with(std::string_view text, std::string_view ending) {
  return text.size() >= ending.size() && text.substr(text.size() - ending.size()) == ending;
}

bool looks_like_path(std::string_view text) {
  return text.find('/') != std::string_view::npos || ends_with(text, ".yaml") || ends_with(text, ".yml") ||
         ends_with(text, ".json");
}

/// Everything a read collects beside its value.
struct Context {
  Faults faults;
  Diagnostics errors;  // that come with a place of their own: files that do not read or parse
  std::vector<std::string> warnings;
};

/// The keys of `over` replace those of `base`, section by section. A single value under a section becomes the section's
/// leading key: "device: h100-sxm" under {memory: 94 GiB} is {from: h100-sxm, memory: 94 GiB}.
/// A section with a `from` of its own begins anew: nothing of the one below shows through.
void overlay(Node& base, Node over) {
  if (!base.is_map() || !over.is_map()) {
    base = std::move(over);
    return;
  }
  for (Entry& e : over.entries) {
    Entry* mine = base.find(e.key);
    if (mine && e.value.is_map() && !e.value.find("from")) {
      if (mine->value.is_scalar()) {
        Node section;
        section.kind = Node::Kind::map;
        section.place = mine->value.place;
        const Place place = mine->place;
        const char* lead = e.key == "recompute" ? "kind" : "from";
        section.set(lead, std::move(mine->value), place);
        mine->value = std::move(section);
      }
      if (mine->value.is_map()) {
        overlay(mine->value, std::move(e.value));
        continue;
      }
    }
    base.set(e.key, std::move(e.value), e.place);
  }
}

std::optional<Node> load(Kind kind, const std::string& reference, const Place& place, std::string_view path, int depth,
                         Context& context);
void read_beside(Kind kind, Node node, std::string_view path, int depth, Context& context);

/// Turns a name, a path or a map with `from` into a map without references. Nothing on a fault, which is noted.
std::optional<Node> resolve(Kind kind, Node node, std::string_view path, int depth, Context& context) {
  if (node.is_scalar()) {
    std::optional<Node> loaded = load(kind, node.text, node.place, path, depth, context);
    if (!loaded) return loaded;
    node = std::move(*loaded);
  } else if (node.is_map()) {
    if (const Entry* from = node.find("from")) {
      if (!from->value.is_scalar()) {
        context.faults.push_back({from->value.place, path.empty() ? std::string("from") : fmt::format("{}.from", path),
                                  "is not a name or a path", ""});
        return std::nullopt;
      }
      std::optional<Node> base = load(kind, from->value.text, from->value.place, path, depth, context);
      std::erase_if(node.entries, [](const Entry& e) { return e.key == "from"; });
      if (!base) {
        read_beside(kind, std::move(node), path, depth, context);
        return base;
      }
      base->place = node.place;
      overlay(*base, std::move(node));
      node = std::move(*base);
    }
  } else {
    context.faults.push_back({node.place, std::string(path), node.kind == Node::Kind::null ? "is empty" : "is a list",
                              fmt::format("the name of a built-in {}, a path, or a section", words_of(kind).word)});
    return std::nullopt;
  }
  if (kind == Kind::cluster) {
    if (Entry* device = node.find("device")) {
      const std::string inner = path.empty() ? "device" : fmt::format("{}.device", path);
      std::optional<Node> resolved = resolve(Kind::device, device->value, inner, depth + 1, context);
      if (!resolved) {
        std::erase_if(node.entries, [](const Entry& e) { return e.key == "device"; });
        read_beside(kind, std::move(node), path, depth, context);
        return std::nullopt;
      }
      device->value = std::move(*resolved);
    }
  }
  return node;
}

/// A model in memory as a tree, so that keys of it can be replaced like those of a file.
Node tree_of(const ModelSpec& model, const std::shared_ptr<const Source>& source) {
  Result<Node> node = tree::parse_yaml(print_model(model), source);
  WT_CHECK(node.ok(), "{}", to_text(node.errors()));
  struct Forget {
    static void places(Node& n) {  // lines of the printed text mean nothing to the user
      n.place.line = n.place.column = 0;
      for (Node& i : n.items) places(i);
      for (Entry& e : n.entries) {
        e.place.line = e.place.column = 0;
        places(e.value);
      }
    }
  };
  Forget::places(node.value());
  return node.value();
}

void name_it(Node& node, const std::string& path) {
  if (!node.is_map() || node.find("name")) return;
  Node name;
  name.kind = Node::Kind::scalar;
  name.text = fs::path(path).stem().string();
  name.place = node.place;
  node.set("name", std::move(name), node.place);
}

/// A JSON object: '{', then a quoted key or nothing. Files of the Hugging Face cache carry digests for names, and a YAML
/// map in braces has bare keys.
bool opens_json_object(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n", kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const size_t brace = text.find_first_not_of(kBlank);
  if (brace == std::string_view::npos || text[brace] != '{') return false;
  const size_t next = text.find_first_not_of(kBlank, brace + 1);
  return next != std::string_view::npos && (text[next] == '"' || text[next] == '}');
}

std::optional<Node> load_file(Kind kind, const std::string& file, std::string_view path, int depth, Context& context) {
  Result<std::string> text = read_file(file, tree::kMaxBytes);
  if (!text.ok()) {
    Diagnostic d = text.errors()[0];
    if (kind == Kind::model && fs::is_directory(file)) d.hint = "give the config.json or the .yaml in it";
    context.errors.push_back(std::move(d));
    return std::nullopt;
  }
  const auto source = file_source(file);
  if (kind == Kind::model && (ends_with(file, ".json") || opens_json_object(text.value()))) {
    Result<ImportedModel> model = parse_hf_config(text.value(), file);
    if (!model.ok()) {
      context.errors.insert(context.errors.end(), model.errors().begin(), model.errors().end());
      return std::nullopt;
    }
    context.warnings.insert(context.warnings.end(), model.value().warnings.begin(), model.value().warnings.end());
    return tree_of(model.value().model, source);
  }
  Result<Node> node = tree::parse_yaml(text.value(), source);
  if (!node.ok()) {
    context.errors.insert(context.errors.end(), node.errors().begin(), node.errors().end());
    return std::nullopt;
  }
  if (!node.value().is_map()) {
    context.faults.push_back(
        {node.value().place, "", fmt::format("is not a {} spec", words_of(kind).word), "a file of 'key: value' lines"});
    return std::nullopt;
  }
  name_it(node.value(), file);
  return resolve(kind, std::move(node.value()), path, depth + 1, context);
}

std::optional<Node> load(Kind kind, const std::string& reference, const Place& place, std::string_view path, int depth,
                         Context& context) {
  constexpr int kLongestChain = 8;
  if (depth > kLongestChain) {
    context.faults.push_back({place, std::string(path), "files refer to each other in a circle or too deep",
                              fmt::format("at most {} files", kLongestChain)});
    return std::nullopt;
  }
  const auto [word, folder] = words_of(kind);
  if (!looks_like_path(reference)) {
    const std::string found = find_data(folder, reference);
    if (!found.empty() && ends_with(found, ".yaml")) return load_file(kind, found, path, depth, context);
    std::vector<std::string> names = list_data(folder);
    std::vector<std::string_view> views(names.begin(), names.end());
    context.faults.push_back(
        {place, std::string(path), fmt::format("no built-in {} '{}'", word, reference), suggest(reference, views)});
    return std::nullopt;
  }
  fs::path file = reference;
  if (file.is_relative() && place.source && !place.source->directory.empty())
    file = fs::path(place.source->directory) / file;
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    context.faults.push_back({place, std::string(path), fmt::format("no file '{}'", file.string()), ""});
    return std::nullopt;
  }
  return load_file(kind, file.string(), path, depth, context);
}

// --------------------------------------------------------------------------------------------------- reading

template <class T>
T read_map(const Node& node, const std::string& path, Context& context) {
  T out;
  if (!node.is_map()) {
    context.faults.push_back({node.place, path, node.kind == Node::Kind::null ? "is empty" : "is not a section",
                              "'key: value' lines, indented"});
    return out;
  }
  MapReader reader(node, path, context.faults);
  describe(reader, out);
  reader.finish();
  check(reader, out);
  return out;
}

Diagnostics all_errors(Context& context) {
  Diagnostics out = std::move(context.errors);
  Diagnostics rest = to_diagnostics(std::move(context.faults));
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

template <class T>
void read_part(const Node& node, std::string_view path, Context& context) {
  T ignored;
  MapReader reader(node, std::string(path), context.faults, MapReader::Extent::part);
  describe(reader, ignored);
  reader.finish();
}

/// The faults of the keys beside a reference that could not be followed: they are the user's all the same.
void read_beside(Kind kind, Node node, std::string_view path, int depth, Context& context) {
  switch (kind) {
    case Kind::model: return read_part<ModelSpec>(node, path, context);
    case Kind::device: return read_part<DeviceSpec>(node, path, context);
    case Kind::cluster: break;
  }
  if (Entry* device = node.find("device")) {
    if (device->value.is_map() && !device->value.find("from")) {  // replaces keys of the one that is not known
      read_part<DeviceSpec>(device->value, path.empty() ? "device" : fmt::format("{}.device", path), context);
    } else {
      resolve(Kind::device, device->value, path.empty() ? "device" : fmt::format("{}.device", path), depth + 1,
              context);
    }
    std::erase_if(node.entries, [](const Entry& e) { return e.key == "device"; });
  }
  read_part<ClusterSpec>(node, path, context);
}

template <class T>
Result<T> read_tree(Kind kind, Node root, Context& context) {
  std::optional<Node> node = resolve(kind, std::move(root), "", 0, context);
  T out;
  if (node) out = read_map<T>(*node, "", context);
  if (Diagnostics errors = all_errors(context); !errors.empty()) return errors;
  return out;
}

template <class T>
Result<T> read_reference(Kind kind, const std::string& reference, Context& context) {
  Node scalar;
  scalar.kind = Node::Kind::scalar;
  scalar.text = reference;
  scalar.place.source = std::make_shared<const Source>(Source{});
  return read_tree<T>(kind, std::move(scalar), context);
}

template <class T>
Result<T> parse_spec(Kind kind, std::string_view text, const std::string& file) {
  Result<Node> root = tree::parse_yaml(text, file_source(file));
  if (!root.ok()) return root.errors();
  Context context;
  if (!root.value().is_map())
    return Diagnostic{tree::to_text(root.value().place, ""), fmt::format("is not a {} spec", words_of(kind).word),
                      "a file of 'key: value' lines"};
  name_it(root.value(), file);
  return read_tree<T>(kind, std::move(root.value()), context);
}

template <class T>
Result<T> parse_section(std::string_view text, const std::string& file) {
  Result<Node> root = tree::parse_yaml(text, file_source(file));
  if (!root.ok()) return root.errors();
  Context context;
  T out = read_map<T>(root.value(), "", context);
  if (Diagnostics errors = all_errors(context); !errors.empty()) return errors;
  return out;
}

// ------------------------------------------------------------------------------------------------- overrides

/// Adds "path=value" to the tree of a job as if the file said it.
void apply_override(Node& root, const std::string& text, Context& context) {
  const auto source = std::make_shared<const Source>(Source{fmt::format("--set {}", text), "", true});
  const Place place{source, 0, 0};
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    context.faults.push_back({place, "", "is not of the form key=value", "such as --set strategy.tensor=4"});
    return;
  }
  std::vector<std::string> keys;
  for (size_t begin = 0; begin <= equals;) {
    const size_t end = std::min(text.find('.', begin), equals);
    keys.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (std::any_of(keys.begin(), keys.end(), [](const std::string& k) { return k.empty(); }) ||
      keys.size() > tree::kMaxDepth / 2) {
    context.faults.push_back({place, "", "is not of the form key=value", "such as --set strategy.tensor=4"});
    return;
  }
  Node value;
  value.place = place;
  const std::string_view written = std::string_view(text).substr(equals + 1);
  if (written.find_first_not_of(' ') != std::string_view::npos) {
    Result<Node> parsed = tree::parse_yaml(written, source);
    if (!parsed.ok()) {
      for (const Diagnostic& d : parsed.errors()) context.faults.push_back({place, "", d.what, d.hint});
      return;
    }
    value = std::move(parsed.value());
  }
  // Another cluster or model as a whole: what the file says beside `from` was about the old one, but for `nodes`.
  if (keys.size() == 1 && value.is_scalar() && (keys[0] == "cluster" || keys[0] == "model")) {
    Entry* old = root.find(keys[0]);
    if (Entry* nodes = old ? old->value.find("nodes") : nullptr; nodes && keys[0] == "cluster") {
      Node section;
      section.kind = Node::Kind::map;
      section.place = place;
      section.set("from", std::move(value), place);
      section.set("nodes", nodes->value, nodes->place);
      value = std::move(section);
    }
    root.set(keys[0], std::move(value), place);
    return;
  }
  for (size_t i = keys.size(); i-- > 0;) {  // inside out: {strategy: {tensor: 4}}
    Node section;
    section.kind = Node::Kind::map;
    section.place = place;
    section.set(keys[i], std::move(value), place);
    value = std::move(section);
  }
  overlay(root, std::move(value));
}

Result<JobSpec> read_job_tree(Node root, const std::string& file, std::span<const std::string> overrides,
                              KeyPlaces& places) {
  Context context;
  places = KeyPlaces(file);
  if (!root.is_map())
    return Diagnostic{tree::to_text(root.place, ""), "is not a job",
                      "a file with the sections model, cluster, strategy, training"};
  for (const std::string& o : overrides) apply_override(root, o, context);

  JobSpec job;
  job.name = fs::path(file).stem().string();
  constexpr std::array<std::string_view, 6> kKeys = {"name", "framework", "model", "cluster", "strategy", "training"};
  for (const Entry& e : root.entries)
    if (std::find(kKeys.begin(), kKeys.end(), e.key) == kKeys.end())
      context.faults.push_back(
          {e.place, "", fmt::format("unknown key '{}'", e.key.substr(0, 60)), suggest(e.key, kKeys)});
  if (const Entry* e = root.find("name")) {
    if (e->value.is_scalar()) {
      job.name = e->value.text.substr(0, 4096);
    } else {
      context.faults.push_back({e->value.place, "name", "is not a text", ""});
    }
  }
  apply_framework(root, context.faults, context.errors, job.assumptions);
  // Each section is checked on its own, so that a fault in one does not hide faults in the others.
  auto section = [&](const char* key, bool required, auto read) {
    const Entry* e = root.find(key);
    if (!e) {
      if (required)
        context.faults.push_back({root.place, "", fmt::format("missing key '{}'", key),
                                  "a job has the sections model, cluster, strategy, training"});
      return;
    }
    Context inner;
    read(e->value, inner);
    context.faults.insert(context.faults.end(), inner.faults.begin(), inner.faults.end());
    context.errors.insert(context.errors.end(), inner.errors.begin(), inner.errors.end());
    context.warnings.insert(context.warnings.end(), inner.warnings.begin(), inner.warnings.end());
  };
  section("model", true, [&](const Node& n, Context& inner) {
    if (auto node = resolve(Kind::model, n, "model", 0, inner)) {
      places.add(*node, "model");
      job.model = read_map<ModelSpec>(*node, "model", inner);
    }
  });
  section("cluster", true, [&](const Node& n, Context& inner) {
    if (auto node = resolve(Kind::cluster, n, "cluster", 0, inner)) {
      places.add(*node, "cluster");
      job.cluster = read_map<ClusterSpec>(*node, "cluster", inner);
    }
  });
  section("strategy", false, [&](const Node& n, Context& inner) {
    places.add(n, "strategy");
    job.strategy = read_map<StrategySpec>(n, "strategy", inner);
    if (job.strategy.data_parallel != DataParallel::ddp || !n.is_map()) return;
    if (const Entry* e = n.find("overlap_grad_reduce"); e && !job.strategy.overlap_grad_reduce)
      inner.warnings.push_back(
          tree::to_text(e->place, "strategy.overlap_grad_reduce") +
          ": false has no effect with data_parallel ddp, which always reduces beside the backward");
  });
  // DistributedDataParallel has no such switch: what is planned, and what is printed, is an overlapped reduction.
  if (job.strategy.data_parallel == DataParallel::ddp) job.strategy.overlap_grad_reduce = true;
  section("training", true, [&](const Node& n, Context& inner) {
    places.add(n, "training");
    job.training = read_map<TrainingSpec>(n, "training", inner);
  });

  if (job.model.name.empty()) job.model.name = job.name;
  if (job.cluster.name.empty()) job.cluster.name = job.name;
  job.warnings = std::move(context.warnings);
  for (const Fault& f : context.faults) places.add_fault(f.path, f.legal);
  for (size_t i = 0; i < context.errors.size(); ++i) places.add_fault("", {});  // of a file as a whole
  if (Diagnostics errors = all_errors(context); !errors.empty()) return errors;
  return job;
}

}  // namespace

Result<ModelSpec> read_model(const std::string& name_or_path, std::vector<std::string>* warnings) {
  Context context;
  Result<ModelSpec> out = read_reference<ModelSpec>(Kind::model, name_or_path, context);
  if (warnings) *warnings = std::move(context.warnings);
  return out;
}
Result<ClusterSpec> read_cluster(const std::string& name_or_path) {
  Context context;
  return read_reference<ClusterSpec>(Kind::cluster, name_or_path, context);
}
Result<DeviceSpec> read_device(const std::string& name_or_path) {
  Context context;
  return read_reference<DeviceSpec>(Kind::device, name_or_path, context);
}

Result<JobSpec> read_job(const std::string& path, std::span<const std::string> overrides) {
  KeyPlaces ignored;
  return read_job(path, overrides, ignored);
}

Result<JobSpec> read_job(const std::string& path, std::span<const std::string> overrides, KeyPlaces& places) {
  Result<std::string> text = read_file(path, tree::kMaxBytes);
  if (!text.ok()) return text.errors();
  return parse_job(text.value(), path, overrides, places);
}

Result<ModelSpec> parse_model(std::string_view text, const std::string& file) {
  return parse_spec<ModelSpec>(Kind::model, text, file);
}
Result<ClusterSpec> parse_cluster(std::string_view text, const std::string& file) {
  return parse_spec<ClusterSpec>(Kind::cluster, text, file);
}
Result<DeviceSpec> parse_device(std::string_view text, const std::string& file) {
  return parse_spec<DeviceSpec>(Kind::device, text, file);
}
Result<StrategySpec> parse_strategy(std::string_view text, const std::string& file) {
  return parse_section<StrategySpec>(text, file);
}
Result<TrainingSpec> parse_training(std::string_view text, const std::string& file) {
  return parse_section<TrainingSpec>(text, file);
}

Result<JobSpec> parse_job(std::string_view text, const std::string& file, std::span<const std::string> overrides) {
  KeyPlaces ignored;
  return parse_job(text, file, overrides, ignored);
}

Result<JobSpec> parse_job(std::string_view text, const std::string& file, std::span<const std::string> overrides,
                          KeyPlaces& places) {
  if (auto foreign = foreign_text(text, file)) return *foreign;
  Result<Node> root = tree::parse_yaml(text, file_source(file));
  if (!root.ok()) return root.errors();
  if (auto foreign = foreign_map(root.value(), file)) return *foreign;
  return read_job_tree(std::move(root.value()), file, overrides, places);
}

}  // namespace wt
