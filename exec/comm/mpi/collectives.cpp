#include "exec/comm/mpi/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "exec/comm/reduce.hpp"

namespace wt::exec {

namespace {

class MpiCollective {
 public:
  MpiCollective(Messages& messages, int self, MpiSide& side, const Transfer& t)
      : messages_(messages), self_(self), side_(side), t_(t) {}

  Status run() {
    for (size_t i = 0; i < t_.writes.size(); ++i)
      if (const Status s = check(i); !s) return s;
    // Small operands travel together: one wait for the whole call in place of one for each.
    switch (kind()) {
      case plan::CollectiveKind::all_gather: return gather();
      case plan::CollectiveKind::broadcast: return broadcast();
      case plan::CollectiveKind::all_to_all: return all_to_all();
      case plan::CollectiveKind::shift_up:
      case plan::CollectiveKind::shift_down: return shift();
      case plan::CollectiveKind::reduce_scatter:
      case plan::CollectiveKind::all_reduce: return reduce();
    }
    return ok_status();
  }

 private:
  plan::CollectiveKind kind() const { return t_.collective->kind; }
  int64_t n() const { return static_cast<int64_t>(side_.members.size()); }
  int64_t me() const { return side_.index; }

  Status fail(std::string what) const {
    return Diagnostic{fmt::format("rank {}, op '{}' ({})", self_, t_.op, plan::to_text(kind())), std::move(what), ""};
  }
  Status check(size_t i) const {
    const Operand &in = t_.reads[i], &out = t_.writes[i];
    int64_t wanted = in.elements;
    if (kind() == plan::CollectiveKind::all_gather) wanted = in.elements * n();
    if (kind() == plan::CollectiveKind::reduce_scatter) wanted = in.elements / n();
    if (out.elements != wanted || out.dtype != in.dtype)
      return fail(fmt::format("writes {} elements, {} come out", out.elements, wanted));
    return ok_status();
  }

  Status send_and_receive(std::span<const Part> parts) { return messages_.exchange(t_.op, side_.lane, parts); }

  static std::byte* at(const Operand& x, int64_t element) {
    return static_cast<std::byte*>(x.data) + element * size_of(x.dtype);
  }
  static void move(const void* from, void* to, int64_t bytes) {
    if (from != to && bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
  }

  Status gather() {
    std::vector<Part> parts;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      move(in.data, at(out, me() * in.elements), in.bytes());
      for (int64_t k = 0; k < n(); ++k) {
        if (k == me()) continue;
        const int peer = side_.members[static_cast<size_t>(k)];
        parts.push_back({peer, false, at(out, k * in.elements), in.bytes()});
        parts.push_back({peer, true, at(out, me() * in.elements), in.bytes()});
      }
    }
    return send_and_receive(parts);
  }

  Status broadcast() {
    std::vector<Part> parts;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      if (me() == 0) {
        move(in.data, out.data, in.bytes());
        for (int64_t k = 1; k < n(); ++k)
          parts.push_back({side_.members[static_cast<size_t>(k)], true, out.data, out.bytes()});
      } else {
        parts.push_back({side_.members[0], false, out.data, out.bytes()});
      }
    }
    return send_and_receive(parts);
  }

  Status all_to_all() {
    int64_t bytes = 0;
    for (const Operand& x : t_.reads) bytes += x.bytes();
    std::byte* copy = room(side_.scratch, bytes);  // reads and writes may be one buffer
    std::vector<Part> parts;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      move(in.data, copy, in.bytes());
      const int64_t each = in.elements / n(), size = each * size_of(in.dtype);
      for (int64_t k = 0; k < n(); ++k) {
        const int peer = side_.members[static_cast<size_t>(k)];
        if (k == me()) {
          move(copy + k * size, at(out, k * each), size);
        } else {
          parts.push_back({peer, false, at(out, k * each), size});
          parts.push_back({peer, true, copy + k * size, size});
        }
      }
      copy += in.bytes();
    }
    return send_and_receive(parts);
  }

  Status shift() {
    int64_t bytes = 0;
    for (const Operand& x : t_.reads) bytes += x.bytes();
    std::byte* copy = room(side_.scratch, bytes);  // reads and writes may be one buffer
    const int64_t up = kind() == plan::CollectiveKind::shift_up ? 1 : n() - 1;
    const int to = side_.members[static_cast<size_t>((me() + up) % n())];
    const int from = side_.members[static_cast<size_t>((me() + n() - up) % n())];
    std::vector<Part> parts;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      move(in.data, copy, in.bytes());
      if (n() == 1) {
        move(copy, out.data, in.bytes());
      } else {
        parts.push_back({from, false, out.data, out.bytes()});
        parts.push_back({to, true, copy, in.bytes()});
      }
      copy += in.bytes();
    }
    return send_and_receive(parts);
  }

  /// Each member adds up its share of the elements, in the order of the members; of an all-reduce the sums then travel.
  Status reduce() {
    const bool everywhere = kind() == plan::CollectiveKind::all_reduce;
    auto share = [&](const Operand& in, int64_t k) {  // [begin, end) of member k
      const int64_t each = (in.elements + n() - 1) / n();
      return std::pair(std::min(in.elements, k * each), std::min(in.elements, (k + 1) * each));
    };
    int64_t bytes = 0;
    for (const Operand& in : t_.reads) {
      const auto [begin, end] = share(in, me());
      bytes += (end - begin) * size_of(in.dtype);
    }
    // What the others bring for my share, and the sums: the inputs stay whole until they have been sent.
    std::byte* brought = room(side_.scratch, bytes * n());
    std::byte* sums = room(side_.more, bytes);
    std::vector<Part> parts;
    std::byte* place = brought;
    for (const Operand& in : t_.reads) {
      const auto [begin, end] = share(in, me());
      for (int64_t k = 0; k < n(); ++k) {
        const int peer = side_.members[static_cast<size_t>(k)];
        const auto [from, to] = share(in, k);
        if (k == me()) continue;
        parts.push_back(
            {peer, false, place + k * (end - begin) * size_of(in.dtype), (end - begin) * size_of(in.dtype)});
        parts.push_back({peer, true, at(in, from), (to - from) * size_of(in.dtype)});
      }
      place += n() * (end - begin) * size_of(in.dtype);
    }
    if (const Status s = send_and_receive(parts); !s) return s;

    place = brought;
    std::byte* sum = sums;
    for (const Operand& in : t_.reads) {
      const auto [begin, end] = share(in, me());
      const int64_t size = (end - begin) * size_of(in.dtype);
      std::vector<const void*> inputs;
      for (int64_t k = 0; k < n(); ++k) inputs.push_back(k == me() ? at(in, begin) : place + k * size);
      if (const Status s = reduce_elements(inputs, sum, end - begin, in.dtype, t_.collective->reduction); !s)
        return fail(s.errors()[0].what);
      place += n() * size;
      sum += size;
    }
    parts.clear();
    sum = sums;
    for (size_t i = 0; i < t_.writes.size(); ++i) {
      const Operand &in = t_.reads[i], &out = t_.writes[i];
      const auto [begin, end] = share(in, me());
      const int64_t size = (end - begin) * size_of(in.dtype);
      move(sum, everywhere ? at(out, begin) : at(out, 0), size);
      sum += size;
      for (int64_t k = 0; everywhere && k < n(); ++k) {
        if (k == me()) continue;
        const int peer = side_.members[static_cast<size_t>(k)];
        const auto [from, to] = share(in, k);
        parts.push_back({peer, false, at(out, from), (to - from) * size_of(in.dtype)});
        parts.push_back({peer, true, at(out, begin), size});
      }
    }
    return send_and_receive(parts);
  }

  static std::byte* room(std::vector<std::byte>& scratch, int64_t bytes) {
    if (static_cast<int64_t>(scratch.size()) < bytes) scratch.resize(static_cast<size_t>(bytes));
    return scratch.data();
  }

  Messages& messages_;
  const int self_;
  MpiSide& side_;
  const Transfer& t_;
};

}  // namespace

Status run_collective(Messages& messages, int self, MpiSide& side, const Transfer& t) {
  return MpiCollective(messages, self, side, t).run();
}

}  // namespace wt::exec
