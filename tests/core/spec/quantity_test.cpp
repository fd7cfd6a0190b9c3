// Numbers with units: what is read, what is refused with which words, and that printing reads back equal.
#include "core/spec/quantity.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

namespace wt {
namespace {

double rate(std::string_view t) { return parse_bytes_per_second(t).value().n; }

TEST(Quantity, ReadsUnits) {
  EXPECT_EQ(rate("900 GB/s"), 900e9);
  EXPECT_EQ(rate("900GB/s"), 900e9);
  EXPECT_EQ(rate(" 900  GB/s "), 900e9);
  EXPECT_EQ(rate("400 Gb/s"), 50e9);
  EXPECT_EQ(rate("400 Gbit/s"), 50e9);
  EXPECT_EQ(rate("3.35 TB/s"), 3.35e12);
  EXPECT_EQ(rate("1 GiB/s"), 1073741824.0);
  EXPECT_EQ(parse_bytes("80 GiB").value().n, int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("80 GB").value().n, 80000000000);
  EXPECT_EQ(parse_bytes("25 MiB").value().n, 25 << 20);
  EXPECT_EQ(parse_bytes("1e3 B").value().n, 1000);
  EXPECT_EQ(parse_bytes("0 B").value().n, 0);
  EXPECT_EQ(parse_time("2 us").value(), Time::us(2));
  EXPECT_EQ(parse_time("2 µs").value(), Time::us(2));
  EXPECT_EQ(parse_time("0.5 ns").value(), Time::ps(500));
  EXPECT_EQ(parse_time("2 h").value(), Time::us(7200000000));
  EXPECT_EQ(parse_flops_per_second("312 TFLOP/s").value().n, 312e12);
  EXPECT_EQ(parse_flops_per_second("312 TFLOPS").value().n, 312e12);
  EXPECT_EQ(parse_quantity(Quantity::frequency, "1.41 GHz").value(), 1.41e9);
  EXPECT_EQ(parse_quantity(Quantity::power, "10.2 kW").value(), 10200.0);
}

TEST(Quantity, RefusesWithTheReason) {
  const auto said = [](Quantity k, std::string_view t) {
    const Result<double> r = parse_quantity(k, t);
    return r.ok() ? "" : r.errors()[0].what + " (" + r.errors()[0].hint + ")";
  };
  EXPECT_EQ(said(Quantity::power, "25"), "'25' has no unit (units: MW kW W)");
  EXPECT_EQ(said(Quantity::bytes, "25 mib"), "'25 mib': unknown unit 'mib' (did you mean 'MiB'?)");
  EXPECT_EQ(said(Quantity::bytes_per_second, "25 Gbps"),
            "'25 Gbps': unknown unit 'Gbps' (write 'GB/s' for bytes or 'Gb/s' for bits)");
  EXPECT_EQ(said(Quantity::power, "-3 W"), "'-3 W' is negative ()");
  for (const char* bad : {"", " ", "GB/s", "nan GB/s", "inf GB/s", "1e999 GB/s", "1..2 GB/s", "1,000 GB/s", "0x10 GB/s",
                          "5 GB", "5 GB/s/s", "5 GB/s extra", "--5 GB/s"})
    EXPECT_FALSE(parse_quantity(Quantity::bytes_per_second, bad).ok()) << bad;
  EXPECT_FALSE(parse_bytes("9 EiB").ok());
  EXPECT_FALSE(parse_bytes("5000 PB").ok());
  EXPECT_FALSE(parse_time("101 days").ok());
  EXPECT_FALSE(parse_time("3000 h").ok());
}

TEST(Quantity, PrintsTheUnitThatSuits) {
  EXPECT_EQ(print(BytesPerSecond{450e9}), "450 GB/s");
  EXPECT_EQ(print(BytesPerSecond{3.35e12}), "3.35 TB/s");
  EXPECT_EQ(print(Bytes{int64_t{80} << 30}), "80 GiB");
  EXPECT_EQ(print(Bytes{1000000000000}), "1 TB");
  EXPECT_EQ(print(Bytes{17}), "17 B");
  EXPECT_EQ(print(Time::ns(1500)), "1500 ns");
  EXPECT_EQ(print(Time::us(2)), "2 us");
  EXPECT_EQ(print(FlopsPerSecond{989.4e12}), "989.4 TFLOP/s");
}

TEST(Quantity, PrintingReadsBackEqual) {
  EXPECT_TRUE(rc::check("bytes", [] {
    const Bytes b{*rc::gen::inRange<int64_t>(0, int64_t{4000000000000000000})};
    RC_ASSERT(parse_bytes(print(b)).value() == b);
  }));
  EXPECT_TRUE(rc::check("round bytes", [] {
    const Bytes b{*rc::gen::inRange<int64_t>(0, 1 << 20) << *rc::gen::inRange(0, 40)};
    RC_ASSERT(parse_bytes(print(b)).value() == b);
  }));
  EXPECT_TRUE(rc::check("time", [] {
    const Time t = Time::ps(*rc::gen::inRange<int64_t>(0, int64_t{8640000000000000000}));
    RC_ASSERT(parse_time(print(t)).value() == t);
  }));
  EXPECT_TRUE(rc::check("rate", [] {
    const double mantissa = *rc::gen::inRange<int64_t>(1, int64_t{1} << 53);
    const BytesPerSecond r{std::ldexp(mantissa, *rc::gen::inRange(-60, 20))};
    RC_ASSERT(parse_bytes_per_second(print(r)).value() == r);
  }));
}

}  // namespace
}  // namespace wt
