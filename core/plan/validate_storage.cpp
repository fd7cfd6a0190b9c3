// Replays every order against storage: reserved before use, released once, written before it is read.
// Not a count of bytes (that is the report's replay). Invariant: exact, yet a block is replayed once for each state in
// which it is entered, not once for each invocation: states of storage are numbered by content, and what a block does
// to one is remembered. So 100,000 invocations cost 100,000 look-ups.
#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/plan/kernels.hpp"
#include "core/plan/validate_passes.hpp"

namespace wt::plan {
namespace {

constexpr size_t kScopes = 4;
constexpr uint32_t kNone = UINT32_MAX;

/// One instance of a buffer in a part. A storage (non-view) owns a run of bytes in the state of its scope:
/// reserved, written for each elementary segment (the storage cut at the ends of its views), written for each piece.
/// A piece is a view whose place depends on the rank (bucket shard), or lies in such a view.
struct Node {
  BufferId buffer;
  int64_t layer = -1;
  uint32_t root = kNone;       // node of the storage it lies in
  uint32_t parent = kNone;     // piece: node that it is cut from
  int64_t begin = 0, end = 0;  // elements of the root
  bool piece = false;
  Scope scope = Scope::invocation;          // of the root
  uint32_t reserved_at = 0, state_end = 0;  // roots: their run in the state
  uint32_t segment_begin = 0, segment_end = 0;
  uint32_t piece_at = 0;
};

struct Access {
  enum class What : uint8_t { reserve, read, add, write, release } what;
  uint8_t binding;
  uint32_t node, op;
  int64_t layer;
};

/// Everything that blocks of one part may touch. The last one is for blocks of no part.
struct PartTable {
  std::vector<Node> nodes;
  std::unordered_map<uint64_t, uint32_t> index;  // (buffer, layer)
};

using State = std::string;  // one byte a flag

class Storage {
 public:
  Storage(const Plan& plan, Faults& faults) : plan_(plan), faults_(faults) {}
  void run();

 private:
  static uint64_t key(BufferId b, int64_t layer) { return uint64_t{b.v} << 32 | static_cast<uint32_t>(layer + 1); }
  uint32_t node(PartTable&, BufferId, int64_t layer);
  void place_views(PartTable&, const std::vector<View>&);
  void lay_out();
  void lay_out(Scope, std::span<PartTable*> tables);
  struct Compiled {
    std::vector<Access> accesses;
    BlockId block;
    uint32_t part[2];
  };
  uint32_t compile(BlockId, PartId second);
  uint32_t number(State state);
  void program(const Program&);
  void order(const Program&, const std::vector<Invocation>&, const std::string& where);
  void apply(const Program&, const Invocation&, const std::string& where, size_t position);
  bool readable(const PartTable&, uint32_t node, const State&) const;
  void replay(const Compiled&, std::array<std::array<State*, 2>, kScopes> states, const std::string& first);

  const Plan& plan_;
  Faults& faults_;
  std::vector<PartTable> tables_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> compiled_of_;
  std::vector<Compiled> compiled_;
  std::vector<std::array<size_t, kScopes>> sizes_;    // of the states, by part
  std::vector<std::array<State, kScopes>> required_;  // by part: 1 where a segment must be written before reading
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<const State*> states_;
  struct Entry {
    std::array<uint32_t, 7> v;
    bool operator==(const Entry&) const = default;
  };
  struct EntryHash {
    size_t operator()(const Entry& e) const {
      uint64_t h = 0;
      for (uint32_t x : e.v) h = (h ^ x) * 0x9e3779b97f4a7c15ull, h ^= h >> 29;
      return h;
    }
  };
  std::unordered_map<Entry, std::array<uint32_t, 5>, EntryHash> remembered_;
  // Of the program that is replayed: numbers of states.
  uint32_t rank_ = 0;
  std::vector<uint32_t> chunk_;
  std::vector<std::vector<uint32_t>> micro_batch_;  // [chunk][micro-batch]
};

uint32_t Storage::node(PartTable& t, BufferId b, int64_t layer) {
  const auto [it, fresh] = t.index.emplace(key(b, layer), static_cast<uint32_t>(t.nodes.size()));
  if (fresh) {
    Node n;
    n.buffer = b;
    n.layer = layer;
    n.scope = plan_.buffer(b).scope;
    n.root = it->second;
    n.end = plan_.buffer(b).elements();
    t.nodes.push_back(n);
  }
  return it->second;
}

/// Views lie in storage or in other views (structure: no circles, every base placed).
void Storage::place_views(PartTable& t, const std::vector<View>& views) {
  std::unordered_map<uint32_t, std::vector<const View*>> of;
  for (const View& v : views)
    if (plan_.buffer(v.buffer).view) of[v.buffer.v].push_back(&v);  // others have storage of their own
  auto place = [&](auto&& self, const View& v, int64_t layer) -> uint32_t {
    const auto found = t.index.find(key(v.buffer, layer));
    if (found != t.index.end()) return found->second;
    uint32_t base;
    const int64_t base_layer = plan_.buffer(v.base).per_layer ? layer : -1;
    if (plan_.buffer(v.base).view)
      base = self(self, *of[v.base.v].front(), base_layer);
    else
      base = node(t, v.base, base_layer);
    const uint32_t id = node(t, v.buffer, layer);
    Node& n = t.nodes[id];
    const Node& in = t.nodes[base];
    n.root = in.root;
    n.scope = in.scope;
    n.piece = v.shard_group.valid() || in.piece;
    n.parent = base;
    n.begin = in.begin + v.offset + (v.layers ? v.layer_stride * (layer - v.first_layer) : 0);
    n.end = n.begin + plan_.buffer(v.buffer).elements();
    return id;
  };
  for (const View& v : views) {
    if (!plan_.buffer(v.buffer).view) continue;
    if (v.layers == 0) place(place, v, -1);
    for (int64_t i = 0; i < v.layers; ++i) place(place, v, v.first_layer + i);
  }
}

/// Gives every storage of the scope its run in the state. Tables that share a scope's state (rank) share runs.
void Storage::lay_out(Scope scope, std::span<PartTable*> tables) {
  struct Root {
    std::vector<std::pair<int64_t, int64_t>> parts;  // intervals of whole views, the storage itself included
    std::vector<std::pair<size_t, uint32_t>> nodes;  // (table, node), pieces included
  };
  std::map<uint64_t, Root> roots;
  for (size_t t = 0; t < tables.size(); ++t)
    for (uint32_t i = 0; i < tables[t]->nodes.size(); ++i) {
      const Node& n = tables[t]->nodes[i];
      if (n.scope != scope) continue;
      const Node& root = tables[t]->nodes[n.root];
      Root& r = roots[key(root.buffer, root.layer)];
      r.nodes.emplace_back(t, i);
      if (!n.piece) r.parts.emplace_back(n.begin, n.end);
    }
  State required;
  for (auto& [name, r] : roots) {
    std::vector<int64_t> cuts;
    for (const auto& [begin, end] : r.parts) cuts.insert(cuts.end(), {begin, end});
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    // Padding is what only the storage itself, or a view made of views, covers: nobody writes it, nobody misses it.
    // A view is a leaf when no smaller one lies in it, that is when it is one elementary segment.
    std::sort(r.parts.begin(), r.parts.end());
    r.parts.erase(std::unique(r.parts.begin(), r.parts.end()), r.parts.end());
    auto at = [&](int64_t cut) {
      return static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), cut) - cuts.begin());
    };
    const size_t segments = cuts.size() - 1;
    State leaf(segments, 0);
    for (size_t i = 0; i < r.parts.size(); ++i) {
      bool smallest = true;
      for (size_t k = i + 1; k < r.parts.size() && r.parts[k].first < r.parts[i].second && smallest; ++k)
        smallest = r.parts[k].second > r.parts[i].second;
      // Sorted by begin, then end: one that begins with i and is smaller stands just before it.
      if (i > 0 && r.parts[i - 1].first == r.parts[i].first) smallest = false;
      if (!smallest) continue;
      for (size_t k = at(r.parts[i].first); k < at(r.parts[i].second); ++k) leaf[k] = 1;
    }
    const auto begin = static_cast<uint32_t>(required.size());
    required += '\0';
    required += leaf;
    uint32_t next_piece = static_cast<uint32_t>(required.size());
    for (const auto& [t, i] : r.nodes)
      if (tables[t]->nodes[i].piece) tables[t]->nodes[i].piece_at = next_piece++;
    required.resize(next_piece, '\0');
    for (const auto& [t, i] : r.nodes) {
      Node& n = tables[t]->nodes[i];
      n.reserved_at = begin;
      n.state_end = next_piece;
      if (n.piece) continue;
      n.segment_begin = begin + 1 + static_cast<uint32_t>(at(n.begin));
      n.segment_end = begin + 1 + static_cast<uint32_t>(at(n.end));
    }
  }
  for (PartTable* t : tables) {
    const auto part = static_cast<size_t>(t - tables_.data());
    sizes_[part][static_cast<size_t>(scope)] = required.size();
    required_[part][static_cast<size_t>(scope)] = required;
  }
}

void Storage::lay_out() {
  sizes_.resize(tables_.size());
  required_.resize(tables_.size());
  std::vector<PartTable*> all;
  for (PartTable& t : tables_) all.push_back(&t);
  lay_out(Scope::rank, all);
  for (PartTable*& t : all)
    for (Scope s : {Scope::persistent, Scope::micro_batch, Scope::invocation}) lay_out(s, std::span(&t, 1));
}

uint32_t Storage::compile(BlockId id, PartId second) {
  const auto [it, fresh] = compiled_of_.emplace(std::pair{id.v, second.v}, static_cast<uint32_t>(compiled_.size()));
  if (!fresh) return it->second;
  const Block& b = plan_.block(id);
  Compiled c;
  c.block = id;
  const auto none = static_cast<uint32_t>(plan_.parts.size());
  c.part[0] = b.part.valid() ? b.part.v : none;
  c.part[1] = second.valid() ? second.v : none;
  for_each_op(b, [&](const Op& o, uint32_t op, int64_t layer, uint32_t) {
    auto each = [&](Range range, auto what) {
      for (uint32_t i = 0; i < range.count; ++i) {
        const BufferRef& r = b.refs[range.begin + i];
        const Buffer& buffer = plan_.buffer(r.buffer);
        const int64_t at = buffer.per_layer ? layer + r.layer_offset : -1;
        PartTable& t = tables_[c.part[r.binding]];
        if (buffer.view && !t.index.contains(key(r.buffer, at))) {
          faults_.add(where_op(b, op), fmt::format("'{}' is a view that the part does not place", buffer.name),
                      at >= 0 ? fmt::format("layer {}", at) : "");
          continue;
        }
        c.accesses.push_back({what(i), r.binding, node(t, r.buffer, at), op, at});
      }
    };
    using What = Access::What;
    const auto* compute = std::get_if<Compute>(&o.body);
    each(o.reserves, [](uint32_t) { return What::reserve; });
    each(o.reads, [](uint32_t) { return What::read; });
    each(o.writes, [&](uint32_t i) { return compute && accumulates(*compute, i) ? What::add : What::write; });
    each(o.releases, [](uint32_t) { return What::release; });
  });
  compiled_.push_back(std::move(c));
  return it->second;
}

uint32_t Storage::number(State state) {
  if (state.find_first_not_of('\0') == State::npos) state.clear();  // nothing reserved: number 0, whatever the size
  const auto [it, fresh] = numbers_.emplace(std::move(state), static_cast<uint32_t>(states_.size()));
  if (fresh) states_.push_back(&it->first);
  return it->second;
}

bool Storage::readable(const PartTable& t, uint32_t id, const State& s) const {
  const Node& n = t.nodes[id];
  if (n.piece) return s[n.piece_at] || readable(t, n.parent, s);
  const State& required = required_[static_cast<size_t>(&t - tables_.data())][static_cast<size_t>(n.scope)];
  bool any = false;
  for (uint32_t k = n.segment_begin; k < n.segment_end; ++k) {
    if (required[k] && !s[k]) return false;
    any |= s[k] != 0;
  }
  return any;
}

void Storage::replay(const Compiled& c, std::array<std::array<State*, 2>, kScopes> states, const std::string& first) {
  const Block& b = plan_.block(c.block);
  for (const Access& a : c.accesses) {
    const PartTable& t = tables_[c.part[a.binding]];
    const Node& n = t.nodes[a.node];
    const Buffer& buffer = plan_.buffer(n.buffer);
    State& s = *states[static_cast<size_t>(n.scope)][a.binding];
    auto fault = [&](std::string_view what) {
      faults_.add(
          where_op(b, a.op),
          fmt::format("{} '{}'{}", what.substr(0, what.find('|')), buffer.name, what.substr(what.find('|') + 1)),
          a.layer >= 0 ? fmt::format("first in {}, layer {}", first, a.layer) : "first in " + first);
    };
    if (a.what == Access::What::reserve) {
      if (buffer.view) {
        fault("reserves|, a view: its base is what has storage");
        continue;
      }
      if (s[n.reserved_at]) fault("reserves|, which is reserved already");
      std::fill(s.begin() + n.reserved_at, s.begin() + n.state_end, '\0');
      s[n.reserved_at] = 1;
      continue;
    }
    if (!s[n.reserved_at]) {
      fault(a.what == Access::What::release ? "releases|, which is not reserved"
            : a.what == Access::What::read  ? "reads|, which is not reserved"
                                            : "writes|, which is not reserved");
      if (a.what == Access::What::release) continue;
      s[n.reserved_at] = 1;  // one fault for one mistake
    }
    switch (a.what) {
      case Access::What::read:
      case Access::What::add:
        if (!readable(t, a.node, s))
          fault(a.what == Access::What::read ? "reads|, which was never written" : "adds to|, which was never written");
        if (a.what == Access::What::read) break;
        [[fallthrough]];
      case Access::What::write:
        if (n.piece)
          s[n.piece_at] = 1;
        else
          std::fill(s.begin() + n.segment_begin, s.begin() + n.segment_end, '\1');
        break;
      case Access::What::release:
        if (buffer.view)
          fault("releases|, a view: its base is what has storage");
        else
          std::fill(s.begin() + n.reserved_at, s.begin() + n.state_end, '\0');
        break;
      case Access::What::reserve: break;
    }
  }
}

void Storage::apply(const Program& p, const Invocation& v, const std::string& where, size_t position) {
  const PartId second = v.bindings > 1 ? p.chunks[v.binding[1].chunk] : PartId{};
  const uint32_t compiled = compile(v.block, second);
  const Binding &x = v.binding[0], &y = v.binding[1];
  const bool one = v.bindings > 0, two = v.bindings > 1;
  const bool same_chunk = two && x.chunk == y.chunk, same_batch = same_chunk && x.micro_batch == y.micro_batch;
  const uint32_t none = 0;  // number of the empty state
  const Entry entry{{compiled, rank_, one ? chunk_[x.chunk] : none, one ? micro_batch_[x.chunk][x.micro_batch] : none,
                     two ? chunk_[y.chunk] : none, two ? micro_batch_[y.chunk][y.micro_batch] : none,
                     uint32_t{same_chunk} | uint32_t{same_batch} << 1}};
  const auto [it, fresh] = remembered_.try_emplace(entry);
  if (fresh) {
    const Compiled& c = compiled_[compiled];
    auto copy = [&](uint32_t number, uint32_t part, Scope scope) {
      State s = *states_[number];
      s.resize(sizes_[part][static_cast<size_t>(scope)], '\0');  // the empty state stands for every size
      return s;
    };
    State rank = copy(rank_, 0, Scope::rank);
    State chunk[2], batch[2], own[2];
    for (size_t k = 0; k < 2; ++k) {
      chunk[k] = copy(entry.v[2 + 2 * k], c.part[k], Scope::persistent);
      batch[k] = copy(entry.v[3 + 2 * k], c.part[k], Scope::micro_batch);
      own[k] = copy(none, c.part[k], Scope::invocation);
    }
    std::array<std::array<State*, 2>, kScopes> states;
    states[static_cast<size_t>(Scope::rank)] = {&rank, &rank};
    states[static_cast<size_t>(Scope::persistent)] = {&chunk[0], &chunk[same_chunk ? 0 : 1]};
    states[static_cast<size_t>(Scope::micro_batch)] = {&batch[0], &batch[same_batch ? 0 : 1]};
    states[static_cast<size_t>(Scope::invocation)] = {&own[0], &own[1]};
    const std::string first = fmt::format("{}, invocation {} ({})", where, position, describe(plan_, v));
    replay(c, states, first);
    for (size_t k = 0; k < 2; ++k)
      for (const Node& n : tables_[c.part[k]].nodes)
        if (n.scope == Scope::invocation && n.reserved_at < own[k].size() && own[k][n.reserved_at] &&
            !plan_.buffer(n.buffer).view)
          faults_.add(fmt::format("block '{}'", plan_.block(c.block).name),
                      fmt::format("ends with '{}' still reserved", plan_.buffer(n.buffer).name), "first in " + first);
    if (same_chunk) chunk[1] = chunk[0];
    if (same_batch) batch[1] = batch[0];
    it->second = {number(std::move(rank)), number(std::move(chunk[0])), number(std::move(batch[0])),
                  number(std::move(chunk[1])), number(std::move(batch[1]))};
  }
  const auto& after = it->second;
  rank_ = after[0];
  if (one) {
    chunk_[x.chunk] = after[1];
    micro_batch_[x.chunk][x.micro_batch] = after[2];
  }
  if (two) {
    chunk_[y.chunk] = after[3];
    micro_batch_[y.chunk][y.micro_batch] = after[4];
  }
}

void Storage::order(const Program& p, const std::vector<Invocation>& invocations, const std::string& where) {
  for (size_t i = 0; i < invocations.size(); ++i) apply(p, invocations[i], where, i);
  // What belongs to a micro-batch ends with the step.
  for (size_t c = 0; c < p.chunks.size(); ++c) {
    uint32_t clean = 0;  // the last state found to hold nothing
    for (size_t m = 0; m < micro_batch_[c].size(); ++m) {
      uint32_t& number = micro_batch_[c][m];
      if (number != clean) {
        const State& s = *states_[number];
        for (const Node& n : tables_[p.chunks[c].v].nodes)
          if (n.scope == Scope::micro_batch && n.reserved_at < s.size() && s[n.reserved_at] &&
              !plan_.buffer(n.buffer).view)
            faults_.add(where, fmt::format("ends with '{}' still reserved", plan_.buffer(n.buffer).name),
                        fmt::format("chunk {}, micro-batch {}{}", c, m,
                                    n.layer >= 0 ? fmt::format(", layer {}", n.layer) : ""));
        clean = number;
      }
    }
    std::fill(micro_batch_[c].begin(), micro_batch_[c].end(), 0);
  }
}

void Storage::program(const Program& p) {
  rank_ = 0;
  chunk_.assign(p.chunks.size(), 0);
  micro_batch_.assign(p.chunks.size(), std::vector<uint32_t>(static_cast<size_t>(plan_.micro_batches), 0));
  const std::string where = fmt::format("program '{}', ", p.name);
  order(p, p.setup, where + "setup");

  const uint32_t rank = rank_;
  const std::vector<uint32_t> chunk = chunk_;
  for (size_t c = 0; c < p.chunks.size(); ++c) {
    const PartTable& t = tables_[p.chunks[c].v];
    for (BufferId id : plan_.parts[p.chunks[c].v].persistent) {
      const Buffer& b = plan_.buffer(id);
      if (b.scope != Scope::persistent) continue;
      const int64_t first = b.per_layer ? 0 : -1, last = b.per_layer ? plan_.parts[p.chunks[c].v].layers - 1 : -1;
      for (int64_t layer = first; layer <= last; ++layer) {
        const auto it = t.index.find(key(id, layer));
        const State& s = *states_[chunk[c]];
        if (it == t.index.end() || s.size() <= t.nodes[it->second].reserved_at || !s[t.nodes[it->second].reserved_at])
          faults_.add(
              where + "setup",
              fmt::format("does not reserve '{}', which part '{}' owns", b.name, plan_.parts[p.chunks[c].v].name),
              layer >= 0 ? fmt::format("layer {}", layer) : "");
      }
    }
  }
  // A step leaves reserved what it found reserved: it may be run again.
  auto unchanged = [&](uint32_t before, uint32_t after, const PartTable& t, Scope scope, const std::string& at) {
    if (before == after) return;
    auto reserved = [](const State& s, const Node& n) { return n.reserved_at < s.size() && s[n.reserved_at]; };
    for (const Node& n : t.nodes) {
      if (n.scope != scope || plan_.buffer(n.buffer).view) continue;
      const bool was = reserved(*states_[before], n), is = reserved(*states_[after], n);
      if (was != is)
        faults_.add(at, fmt::format("{} '{}', which was {} before the step", is ? "leaves reserved" : "releases",
                                    plan_.buffer(n.buffer).name, was ? "reserved" : "not"));
    }
  };
  for (const StepOrder& step : p.steps) {
    rank_ = rank;
    chunk_ = chunk;
    const std::string at = fmt::format("{}step '{}'", where, step.name);
    order(p, step.order, at);
    for (const PartTable& t : tables_) unchanged(rank, rank_, t, Scope::rank, at);
    for (size_t c = 0; c < p.chunks.size(); ++c)
      unchanged(chunk[c], chunk_[c], tables_[p.chunks[c].v], Scope::persistent, at);
  }
}

void Storage::run() {
  tables_.resize(plan_.parts.size() + 1);
  std::vector<View> of_rank;  // for blocks of no part: views in storage of the rank
  for (size_t i = 0; i < plan_.parts.size(); ++i) {
    place_views(tables_[i], plan_.parts[i].views);
    for (const View& v : plan_.parts[i].views)
      if (plan_.buffer(v.buffer).view && !plan_.buffer(v.base).view && plan_.buffer(v.base).scope == Scope::rank &&
          std::none_of(of_rank.begin(), of_rank.end(), [&](const View& o) { return o.buffer == v.buffer; }))
        of_rank.push_back(v);
    for (BufferId id : plan_.parts[i].persistent) {
      const Buffer& b = plan_.buffer(id);
      if (!b.per_layer) node(tables_[i], id, -1);
    }
  }
  place_views(tables_.back(), of_rank);
  // Blocks first, so that every instance is known before it is given its place.
  for (const Program& p : plan_.programs) {
    auto all = [&](const std::vector<Invocation>& order) {
      std::vector<char> seen(plan_.blocks.size());
      for (const Invocation& v : order) {
        if (v.bindings < 2 && std::exchange(seen[v.block.v], 1)) continue;
        compile(v.block, v.bindings > 1 ? p.chunks[v.binding[1].chunk] : PartId{});
      }
    };
    all(p.setup);
    for (const StepOrder& s : p.steps) all(s.order);
  }
  lay_out();
  number(State());
  for (const Program& p : plan_.programs) program(p);
}

}  // namespace

void check_storage(const Plan& plan, Faults& faults) { Storage(plan, faults).run(); }

}  // namespace wt::plan
