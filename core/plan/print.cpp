// The text form. Declarations in the order in which they may be named: mesh, groups, buffers, parts, blocks, programs;
// one line for each op. Everything is named by its name, never by its number, so a diff shows what changed.
// Not a check: a plan with ids out of range prints "?7" and does not parse.
#include <fmt/format.h>

#include <iterator>

#include "core/plan/fold.hpp"
#include "core/plan/kernels.hpp"
#include "core/plan/plan_io.hpp"

namespace wt::plan {
namespace {

class Printer {
 public:
  explicit Printer(const Plan& plan) : plan_(plan) {}
  std::string run();

 private:
  template <class... A>
  void put(fmt::format_string<A...> f, A&&... args) {
    fmt::format_to(std::back_inserter(out_), f, std::forward<A>(args)...);
  }
  void quoted(std::string_view s);
  void name(std::string_view s);
  template <class Tag, class T>
  void named(const std::vector<T>& all, Id<Tag> id) {
    if (id.v < all.size())
      name(all[id.v].name);
    else
      put("?{}", id.v);
  }
  void axis(AxisId id) { named(plan_.mesh.axes, id); }
  void filter(const AxisFilter&);
  void buffer(const Buffer&);
  void part(const Part&);
  void block(const Block&);
  void op(const Block&, size_t index);
  void body(const Op&);
  void refs(const Block&, Range, std::string_view before, std::string_view between);
  void ref(const BufferRef&);
  void program(const Program&);
  void order(std::string_view head, const std::vector<Invocation>&);
  void node(const FoldNode&, std::vector<int64_t>& strides);
  void wrap(size_t mark, std::string_view indent);

  const Plan& plan_;
  std::string out_;
  size_t line_ = 0;  // where the current line of an order begins
};

void Printer::quoted(std::string_view s) {
  out_ += '"';
  for (char c : s) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out_ += '\\') += c;
    else if (c == '\n')
      out_ += "\\n";
    else if (u < 0x20 || u == 0x7f)
      put("\\x{:02x}", u);
    else
      out_ += c;
  }
  out_ += '"';
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// What needs no quotes: letters, digits and dots, each part beginning with a letter ("qkv.bias.grad").
bool is_word(std::string_view s) {
  bool begins = true;
  for (char c : s) {
    if (begins ? !is_letter(c) : !is_letter(c) && !(c >= '0' && c <= '9') && c != '.') return false;
    begins = c == '.';
  }
  return !begins;
}

void Printer::name(std::string_view s) {
  if (is_word(s))
    out_ += s;
  else
    quoted(s);
}

void Printer::filter(const AxisFilter& f) {
  axis(f.axis);
  out_ += " in ";
  for (size_t i = 0; i < f.values.size(); ++i) put("{}{}", i ? ", " : "", f.values[i]);
}

void Printer::buffer(const Buffer& b) {
  out_ += "buffer ";
  name(b.name);
  put(": {} {} [{}] {} {}", to_text(b.role), wt::to_text(b.dtype), fmt::join(b.shape, ", "), to_text(b.space),
      to_text(b.scope));
  if (b.per_layer) out_ += " per_layer";
  if (b.view) out_ += " view";
  for (const Shard& s : b.shards) {
    put(" shard {} over ", s.dim);
    named(plan_.groups, s.group);
    if (s.blocks != 1) put(" blocks {}", s.blocks);
  }
  if (b.init != Init::none) put(" init {}", to_text(b.init));
  if (b.init_scale != 0) put(" scale {}", b.init_scale);
  out_ += '\n';
}

void Printer::part(const Part& p) {
  out_ += "\npart ";
  name(p.name);
  put(": layers {} parameters {}", p.layers, p.parameters);
  if (p.embedding) out_ += " embedding";
  if (p.head) out_ += " head";
  out_ += '\n';
  constexpr size_t kOnALine = 6;
  for (size_t i = 0; i < p.persistent.size(); ++i) {
    out_ += i % kOnALine == 0 ? (i ? "\n  persistent " : "  persistent ") : ", ";
    named(plan_.buffers, p.persistent[i]);
  }
  if (!p.persistent.empty()) out_ += '\n';
  for (const View& v : p.views) {
    out_ += "  view ";
    named(plan_.buffers, v.buffer);
    if (v.layers != 0 || v.first_layer != 0) put(" layers {} + {}", v.first_layer, v.layers);
    out_ += " in ";
    named(plan_.buffers, v.base);
    put(" at {}", v.offset);
    if (v.layer_stride != 0) put(" stride {}", v.layer_stride);
    if (v.shard_group.valid()) {
      out_ += " piece of ";
      named(plan_.groups, v.shard_group);
    }
    out_ += '\n';
  }
}

void Printer::ref(const BufferRef& r) {
  named(plan_.buffers, r.buffer);
  if (r.layer_offset != 0) put("[{:+}]", r.layer_offset);
  if (r.binding != 0) put("@{}", r.binding);
}

void Printer::refs(const Block& b, Range range, std::string_view before, std::string_view between) {
  for (uint32_t i = 0; i < range.count; ++i) {
    out_ += i ? between : before;
    ref(b.refs[range.begin + i]);
  }
}

void Printer::body(const Op& op) {
  if (const auto* c = std::get_if<Compute>(&op.body)) {
    put("{} {}", to_text(c->kernel), wt::to_text(c->dtype));
    size_t dims = c->dims.size();
    while (dims > 0 && c->dims[dims - 1] == 0) --dims;
    if (dims) put(" [{}]", fmt::join(c->dims.begin(), c->dims.begin() + static_cast<std::ptrdiff_t>(dims), ", "));
    if (const std::string words = variant_of(*c); !words.empty()) put(" {}", words);
    if (c->launches != 1) put(" launches {}", c->launches);
    if (c->pieces != 1) put(" pieces {}", c->pieces);
    if (c->document != 0) put(" document {}", c->document);
    if (c->group.valid()) {
      out_ += " over ";
      named(plan_.groups, c->group);
    }
    if (c->scalar != 0) put(" scalar {}", c->scalar);
  } else if (const auto* collective = std::get_if<Collective>(&op.body)) {
    put("{} ", to_text(collective->kind));
    if (collective->reduction != Reduction::sum) put("{} ", to_text(collective->reduction));
    put("{} over ", wt::to_text(collective->dtype));
    named(plan_.groups, collective->group);
    put(" bytes {}", collective->bytes);
    if (collective->copies != 0) put(" copies {}", collective->copies);
  } else if (const auto* send = std::get_if<Send>(&op.body)) {
    put("send {} bytes {}", to_text(send->to), send->bytes);
  } else if (const auto* receive = std::get_if<Receive>(&op.body)) {
    put("receive {} bytes {}", to_text(receive->from), receive->bytes);
  } else if (const auto* copy = std::get_if<Copy>(&op.body)) {
    put("move {} to {} bytes {}", to_text(copy->from), to_text(copy->to), copy->bytes);
  } else if (std::holds_alternative<HostWait>(op.body)) {
    out_ += "host_wait";
  } else {
    out_ += "join";
  }
}

void Printer::op(const Block& b, size_t index) {
  const Op& o = b.ops[index];
  put("  {:3} {} {} ", index, to_text(o.stream), to_text(o.phase));
  quoted(o.name);
  out_ += ": ";
  body(o);
  if (o.reads.count || o.writes.count) {
    refs(b, o.reads, " (", ", ");
    out_ += o.reads.count ? ")" : " ()";
  }
  if (o.writes.count) {
    refs(b, o.writes, " -> (", ", ");
    out_ += ")";
  }
  for (uint32_t i = 0; i < o.waits.count; ++i) {
    const Wait& w = b.waits[o.waits.begin + i];
    if (w.kind == Wait::Kind::tail) {
      if (w.index < kStreams)
        put(" wait tail {}", to_text(static_cast<Stream>(w.index)));
      else
        put(" wait tail ?{}", w.index);
    } else {
      put(" wait {} {}", w.kind == Wait::Kind::piece ? "piece" : "op", w.index);
    }
    if (w.iterations_back) put(" back {}", w.iterations_back);
    if (w.pieces) put(" pieces {}", w.pieces);
  }
  refs(b, o.reserves, " +", " +");
  refs(b, o.releases, " -", " -");
  if (const auto* c = std::get_if<Compute>(&o.body); c && c->work != Work{})
    put(" work {} flops {} read {} written", c->work.flops, c->work.bytes_read, c->work.bytes_written);
  out_ += '\n';
}

void Printer::block(const Block& b) {
  out_ += "\nblock ";
  name(b.name);
  if (b.part.valid()) {
    out_ += " of ";
    named(plan_.parts, b.part);
  }
  out_ += '\n';
  for (const Segment& s : b.segments) {
    out_ += "  segment";
    if (s.first_layer != -1) put(" layer {}", s.first_layer);
    if (s.layer_step != 0) put(" step {}", s.layer_step);
    if (s.iterations != 1) put(" times {}", s.iterations);
    out_ += '\n';
    for (size_t k = s.first_op; k < size_t{s.first_op} + s.op_count && k < b.ops.size(); ++k) op(b, k);
  }
}

/// Breaks the line before the text from `mark` on where it would grow too long.
void Printer::wrap(size_t mark, std::string_view indent) {
  constexpr size_t kLineLength = 110;
  if (out_.size() - line_ <= kLineLength || out_[mark] != ' ') return;
  out_.replace(mark, 1, indent);
  line_ = mark + 1;  // the indent begins with the line break
}

void Printer::node(const FoldNode& n, std::vector<int64_t>& strides) {
  constexpr std::string_view kBreak = "\n    ";
  const size_t mark = out_.size();
  if (n.count == 0) {
    const Invocation& v = n.invocation;
    out_ += ' ';
    named(plan_.blocks, v.block);
    for (size_t i = 0; i < v.bindings && i < v.binding.size(); ++i) {
      put("{}{}[", i ? "&" : ".", v.binding[i].chunk);
      bool first = v.binding[i].micro_batch != 0;
      if (first) put("{}", v.binding[i].micro_batch);
      for (size_t k = 0; k < strides.size(); ++k) {
        const int64_t s = strides[k];
        if (s == 0) continue;
        if (s < 0)
          put("-");
        else if (first)
          put("+");
        if (s != 1 && s != -1) put("{}", s < 0 ? -s : s);
        out_ += static_cast<char>('i' + k);
        first = true;
      }
      if (!first) out_ += '0';
      out_ += ']';
    }
    wrap(mark, kBreak);
    return;
  }
  put(" {}x{{", n.count);
  wrap(mark, kBreak);
  strides.push_back(n.stride);
  for (const FoldNode& b : n.body) node(b, strides);
  strides.pop_back();
  out_ += " }";
}

void Printer::order(std::string_view head, const std::vector<Invocation>& invocations) {
  line_ = out_.size();
  put("  {} {{", head);
  std::vector<int64_t> strides;
  for (const FoldNode& n : fold(invocations)) node(n, strides);
  out_ += " }\n";
}

void Printer::program(const Program& p) {
  out_ += "\nprogram ";
  name(p.name);
  if (p.when.axis.valid()) {
    out_ += " when ";
    filter(p.when);
  }
  out_ += '\n';
  for (size_t i = 0; i < p.chunks.size(); ++i) {
    out_ += "  chunk ";
    named(plan_.parts, p.chunks[i]);
    put(" at layer {}\n", i < p.first_layer.size() ? p.first_layer[i] : -1);
  }
  order("setup", p.setup);
  for (const StepOrder& s : p.steps) {
    std::string head;
    std::swap(head, out_);
    out_ += "step ";
    name(s.name);
    std::swap(head, out_);
    order(head, s.order);
  }
}

std::string Printer::run() {
  put("windtunnel plan {}\nname ", plan_.version);
  quoted(plan_.name);
  put("\nseed {}\nmesh ", plan_.seed);
  for (size_t i = 0; i < plan_.mesh.axes.size(); ++i) {
    if (i) out_ += ", ";
    name(plan_.mesh.axes[i].name);
    put(" {}", plan_.mesh.axes[i].size);
  }
  const Placement& at = plan_.placement;
  put("\nplacement {} pipeline {} chunks {}\n", to_text(at.kind), at.pipeline, at.chunks);
  put("micro_batches {} size {} sequence {}\n", plan_.micro_batches, plan_.micro_batch_size, plan_.sequence);
  for (const std::string& a : plan_.assumptions) {
    out_ += "assumption ";
    quoted(a);
    out_ += '\n';
  }
  if (!plan_.groups.empty()) out_ += '\n';
  for (const Group& g : plan_.groups) {
    out_ += "group ";
    name(g.name);
    out_ += g.axes.empty() ? ": alone" : ": over ";
    for (size_t i = 0; i < g.axes.size(); ++i) {
      if (i) out_ += ", ";
      axis(g.axes[i]);
    }
    if (g.filter) {
      out_ += " where ";
      filter(*g.filter);
    }
    out_ += '\n';
  }
  if (!plan_.buffers.empty()) out_ += '\n';
  for (const Buffer& b : plan_.buffers) buffer(b);
  for (const Part& p : plan_.parts) part(p);
  for (const Block& b : plan_.blocks) block(b);
  for (const Program& p : plan_.programs) program(p);
  return std::move(out_);
}

}  // namespace

std::string variant_of(const Compute& c) {
  std::string words;
  auto add = [&](bool yes, std::string_view word) {
    if (yes) words += fmt::format("{}{}", words.empty() ? "" : " ", word);
  };
  add(c.transpose_a, "transpose_a");
  add(c.transpose_b, "transpose_b");
  add(c.accumulate, "accumulate");
  add(c.causal, "causal");
  add(c.gated, "gated");
  if (c.function) add(true, fmt::format("function {}", c.function));
  return words;
}

std::string print(const Plan& plan) { return Printer(plan).run(); }

}  // namespace wt::plan
