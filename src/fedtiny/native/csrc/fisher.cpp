// What the inputs and the filters of a layer contribute to the Fisher information of its weights:
// F = (mean square of the input) * (mean over images of the squares of the output's gradient,
// summed over pixels), by the input and the filter that a weight connects.
#include <cmath>

#include "run.h"

namespace fedtiny {
namespace {

// Adds the squares of a plane, in the lanes that hold an image: of all pixels to one sum, or of
// each to its own.
void add_squares(const Run& run, LoadRows rows, Index block, float* scratch, double* sums,
                 Index sum_step) {
  const Index room = run.storage.scratch_each / run.lanes, height = rows.rows;
  const Index width = rows.columns, images = run.lanes_in(block);
  rows.rows = 1;
  for (Index i = 0; i < height * width; i += rows.columns) {
    rows.first_row = i / width;
    rows.first_column = i % width;
    rows.columns = std::min(room, width - rows.first_column);
    run.kernels.load_rows(rows, scratch);
    for (Index pixel = 0; pixel < rows.columns; ++pixel)
      for (Index lane = 0; lane < images; ++lane) {
        const auto value = static_cast<double>(scratch[pixel * run.lanes + lane]);
        sums[(i + pixel) * sum_step] += value * value;
      }
  }
}

// Zero where there is nothing: the gradients there are zero too.
float inverse_root(double x) {
  const auto factor = static_cast<float>(1.0 / std::sqrt(x));
  return std::isfinite(factor) ? factor : 0.0F;
}

}  // namespace

void fisher_factors(Run& run, const Op& op, float* factors) {
  const View& view = op.in[0];
  const Shape in = run.tensor(view).shape, out = run.output(op).shape;
  const Index inputs = run.node(op).whole_inputs, filters = run.node(op).channels;
  const bool apart = inputs != in.channels;  // a linear layer weighs every pixel by itself
  const auto images = static_cast<double>(run.pass.count);
  const auto scale = static_cast<double>(run.loss_scale);
  const Index count = apart ? in.plane() : 1;
  Table<double> sums_of_threads(run.storage.options.threads * count);
  run.pool.run(in.channels, [&](Index thread, Index c) {
    double* sums = sums_of_threads.data() + thread * count;
    std::fill_n(sums, count, 0.0);
    for (Index block = 0; block < run.blocks; ++block) {
      const Index offset = (block * in.channels + c) * in.plane() * run.lanes;
      add_squares(run, run.view_rows(view, c, offset), block, run.scratch(thread), sums,
                  apart ? 1 : 0);
    }
    const double values = images * static_cast<double>(apart ? 1 : in.plane());
    for (Index i = 0; i < count; ++i) factors[c * count + i] = inverse_root(sums[i] / values);
  });
  run.pool.run(filters, [&](Index thread, Index f) {
    double sum = 0;
    for (Index block = 0; block < run.blocks; ++block) {
      const Index offset = (block * filters + f) * out.plane() * run.lanes;
      add_squares(run, run.gradient_rows(op.out, block, f, offset), block, run.scratch(thread),
                  &sum, 0);
    }
    factors[inputs + f] = inverse_root(2 * images * sum / (scale * scale));
  });
}

}  // namespace fedtiny
