// Bytes of the native trace file: columns of spans, samples and meta, before compression. Pure; the framing of chunks
// is in file.cpp. Every decoder checks bounds: it is fed hostile bytes.
// Layout of one run of spans (one rank, one step, in issue order), all numbers LEB128 varints:
//   rank, step, count, then four columns, each with its length in bytes:
//   invocation: zigzag difference to the span before
//   op:         zigzag difference to (op before + 1), or to 0 where the invocation changed
//   begin:      zigzag difference to the end of the span before
//   duration
// so that layers and micro-batches, which repeat, give equal bytes for the compressor.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/base/result.hpp"
#include "core/trace/trace.hpp"

namespace wt::trace::codec {

/// Appends to `out`. Ends must not lie before begins (CHECK).
void encode_spans(std::string& out, uint32_t rank, uint32_t step, std::span<const Span> spans);
void encode_samples(std::string& out, std::span<const Sample> samples);
void encode_meta(std::string& out, const Meta& meta);

/// Decode one run and advance `in`; the run's spans are appended by way of `trace_of(rank, step)`.
/// `room`: spans that may still be read; more is an error.
Status decode_spans(std::string_view& in, RankSpans& run, uint64_t room);
Status decode_samples(std::string_view in, std::vector<Sample>& out);
Result<Meta> decode_meta(std::string_view in);

}  // namespace wt::trace::codec
