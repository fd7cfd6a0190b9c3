#include "exec/calibrate/fit.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "core/base/check.hpp"

namespace wt::exec {
namespace {

using Row = std::array<double, 3>;

struct Terms {
  Row coefficient{};
  double squares = std::numeric_limits<double>::infinity();  // sum of the squared relative errors
};

/// The non-negative coefficients that leave least. Three terms at most, so every choice of them is tried: a solution of
/// all, were it to have a negative one, need not become the best by setting that to zero.
Terms least_squares(std::span<const Row> rows, std::span<const double> seconds, unsigned terms) {
  Terms best;
  for (unsigned chosen = 1; chosen < 1u << terms; ++chosen) {
    std::vector<unsigned> columns;
    for (unsigned t = 0; t < terms; ++t)
      if (chosen >> t & 1) columns.push_back(t);
    const auto n = static_cast<Eigen::Index>(rows.size()), m = static_cast<Eigen::Index>(columns.size());
    Eigen::MatrixXd a(n, m);
    for (Eigen::Index i = 0; i < n; ++i)
      for (Eigen::Index j = 0; j < m; ++j)
        a(i, j) = rows[static_cast<size_t>(i)][columns[static_cast<size_t>(j)]] / seconds[static_cast<size_t>(i)];
    const Eigen::VectorXd scale = a.colwise().norm().transpose();  // columns differ by many powers of ten
    if ((scale.array() <= 0).any()) continue;
    const Eigen::MatrixXd scaled = a * scale.cwiseInverse().asDiagonal();
    const auto solver = scaled.colPivHouseholderQr();
    if (solver.rank() < m) continue;  // the points do not tell these terms apart
    const Eigen::VectorXd x = solver.solve(Eigen::VectorXd::Ones(n));
    if ((x.array() < 0).any()) continue;
    const double squares = (scaled * x - Eigen::VectorXd::Ones(n)).squaredNorm();
    // A further term must be worth something beyond rounding.
    if (squares >= best.squares * (1 - 1e-9)) continue;
    best.squares = squares;
    best.coefficient = {};
    for (Eigen::Index j = 0; j < m; ++j) best.coefficient[columns[static_cast<size_t>(j)]] = x(j) / scale(j);
  }
  return best;
}

constexpr double kGoodEnough = 0.01;  // relative error below which another regime would follow the noise

struct Regimes {
  std::vector<size_t> begin;  // first point of each
  std::vector<Terms> lines;
  double squares = std::numeric_limits<double>::infinity();
};

/// The best cut of points [first, n) in `count` lines of two points or more.
Regimes best_cut(std::span<const Row> rows, std::span<const double> seconds, size_t first, int count) {
  Regimes best;
  const size_t n = rows.size();
  if (count == 1) {
    const Terms t = least_squares(rows.subspan(first), seconds.subspan(first), 2);
    return {{first}, {t}, t.squares};
  }
  for (size_t end = first + 2; end + 2 * static_cast<size_t>(count - 1) <= n; ++end) {
    const Terms t = least_squares(rows.subspan(first, end - first), seconds.subspan(first, end - first), 2);
    Regimes rest = best_cut(rows, seconds, end, count - 1);
    if (t.squares + rest.squares >= best.squares) continue;
    best = std::move(rest);
    best.squares += t.squares;
    best.begin.insert(best.begin.begin(), first);
    best.lines.insert(best.lines.begin(), t);
  }
  return best;
}

void add(Residual& r, double curve, double measured, size_t points) {
  const double error = std::abs(curve / measured - 1);
  r.mean += error / static_cast<double>(points);
  r.worst = std::max(r.worst, error);
}

/// Three digits are more than a time is repeated to.
double rounded(double error) { return std::round(error * 1e4) / 1e4; }
double three_digits(double x) {
  if (x <= 0) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(x)) - 2);
  return std::round(x / unit) * unit;
}
Time time_of(double seconds) { return Time::from_seconds(three_digits(seconds)); }
double rate_of(double per_unit) { return per_unit > 0 ? three_digits(1 / per_unit) : 0; }

}  // namespace

Residual fit(KernelCurve& curve) {
  WT_CHECK(!curve.points.empty(), "no points of {}", curve.kernel);
  std::vector<Row> rows;
  std::vector<double> seconds;
  for (const KernelPoint& p : curve.points) {
    rows.push_back({1, p.flops, static_cast<double>(p.bytes.n)});
    seconds.push_back(p.time.seconds());
  }
  const Terms t = least_squares(rows, seconds, 3);
  curve.latency = time_of(t.coefficient[0]);
  curve.rate = rate_of(t.coefficient[1]);
  curve.bandwidth = {rate_of(t.coefficient[2])};
  Residual r;
  for (size_t i = 0; i < rows.size(); ++i) {
    double line = 0;
    for (size_t k = 0; k < 3; ++k) line += rows[i][k] * t.coefficient[k];
    add(r, line, seconds[i], rows.size());
  }
  curve.error = rounded(r.mean);
  return r;
}

Residual fit(TransferCurve& curve) {
  WT_CHECK(!curve.points.empty(), "no points of {} ranks", curve.ranks);
  std::vector<Row> rows;
  std::vector<double> seconds;
  for (const TransferPoint& p : curve.points) {
    rows.push_back({1, static_cast<double>(p.bytes.n), 0});
    seconds.push_back(p.time.seconds());
  }
  Regimes best = best_cut(rows, seconds, 0, 1);
  for (int count = 2; count <= 3; ++count) {
    if (best.squares < kGoodEnough * kGoodEnough * static_cast<double>(rows.size())) break;
    if (Regimes more = best_cut(rows, seconds, 0, count); more.squares < best.squares / 4) best = std::move(more);
  }
  Residual r;
  curve.lines.clear();
  for (size_t k = 0; k < best.lines.size(); ++k) {
    const auto& c = best.lines[k].coefficient;
    curve.lines.push_back({curve.points[best.begin[k]].bytes, time_of(c[0]), {rate_of(c[1])}});
    const size_t end = k + 1 < best.lines.size() ? best.begin[k + 1] : rows.size();
    for (size_t i = best.begin[k]; i < end; ++i) add(r, c[0] + c[1] * rows[i][1], seconds[i], rows.size());
  }
  curve.error = rounded(r.mean);
  return r;
}

}  // namespace wt::exec
