// Batch norm: from sums to what views and gradients go by.
#include <cmath>

#include "run.h"

namespace fedtiny {
namespace {

// A batch norm in a pass.
struct NormRun : Norm {
  NormRun(const Run& r, int place)
      : Norm(r.storage.norms[place]), run(r), node(r.storage.nodes[place]) {}

  // The bias that was left out of what a convolution stored, since batch norm alone reads it.
  double bias_before(Index channel) const {
    const Node& source = run.storage.nodes[node.first];
    const float* before = run.storage.layers[node.first].bias.values;
    const bool leads = source.kind == FEDTINY_CONVOLUTION && source.consumers.size() == 1;
    return leads && before != nullptr ? static_cast<double>(before[channel]) : 0.0;
  }

  struct Moments {
    double mean, var;
  };

  // What a frozen channel is normalized by.
  Moments frozen(Index channel) const {
    return {static_cast<double>(running_mean[channel]) - bias_before(channel),
            static_cast<double>(running_var[channel])};
  }

  // Of one channel, from the sums of all pieces.
  Moments moments(Index channel, Index bands, Index band) const {
    double total = 0, square = 0;
    for (Index piece = 0; piece < run.blocks * bands; ++piece) {
      const BatchSums& from = run.batch_sums(piece * node.out.channels + channel);
      const Index rows = std::min(band, node.out.height - piece % bands * band);
      if (rows <= 0) continue;
      const auto values = static_cast<double>(run.lanes_in(piece / bands) * rows * node.out.width);
      const double own = static_cast<double>(from.sum), pilot = static_cast<double>(from.pilot);
      total += own + values * pilot;
      square += static_cast<double>(from.square) + pilot * (2 * own + values * pilot);
    }
    const double center = total / count;
    return {center, std::max(0.0, square / count - center * center)};
  }

  const Run& run;
  const Node& node;
  const double count = static_cast<double>(run.pass.count * node.out.plane());
  const double epsilon = std::max(run.pass.epsilon, static_cast<double>(node.epsilon));
};

Shape shape(Node& node) {
  need(std::isfinite(node.epsilon) && node.epsilon > 0, node, "needs an epsilon above 0");
  need(node.momentum >= 0 && node.momentum <= 1, node, "needs a momentum of 0 to 1");
  return node.in;
}

}  // namespace

void measure_batch(Run& run, int place, Index bands, Index band) {
  const NormRun n(run, place);
  const bool frozen = run.pass.freeze_norms != 0;
  if (n.count < 2 && !frozen) refuse("batch norm cannot measure a single value a channel");
  const auto move = [&](float& running, double to) {
    const auto momentum = static_cast<double>(n.node.momentum);
    running = static_cast<float>((1 - momentum) * static_cast<double>(running) + momentum * to);
  };
  for (Index c = 0; c < n.node.out.channels; ++c) {
    const Index w = n.numbers[c];
    const auto [mean, var] = frozen ? n.frozen(w) : n.moments(c, bands, band);
    n.mean[w] = mean + n.bias_before(w);
    n.var[w] = var;
    n.batch_mean[c] = static_cast<float>(mean);
    n.a[c] = static_cast<float>(1.0 / std::sqrt(var + n.epsilon));
    n.scale[c] = n.weight.values[w] * n.a[c];
    n.shift[c] = static_cast<float>(static_cast<double>(n.bias.values[w]) -
                                    mean * static_cast<double>(n.scale[c]));
    if (!run.pass.learns() || frozen) continue;
    move(n.running_mean[w], n.mean[w]);
    move(n.running_var[w], var * n.count / (n.count - 1));
  }
}

void use_running_statistics(Run& run, int place) {
  const NormRun n(run, place);
  for (Index c = 0; c < n.node.out.channels; ++c) {
    const Index w = n.numbers[c];
    const double deviation =
        std::sqrt(static_cast<double>(n.running_var[w]) + static_cast<double>(n.node.epsilon));
    const double a = static_cast<double>(n.weight.values[w]) / deviation;
    const double center = static_cast<double>(n.running_mean[w]) - n.bias_before(w);
    n.scale[c] = static_cast<float>(a);
    n.shift[c] = static_cast<float>(static_cast<double>(n.bias.values[w]) - center * a);
  }
}

// dz = a * (d - mean(d) - xhat * mean(d * xhat)) as a * d + k1 + k2 * (z - mean). Statistics that
// are frozen do not depend on z: k1 and k2 are zero.
void finish_norm_gradient(Run& run, int place) {
  const NormRun n(run, place);
  const double unscale = 1.0 / static_cast<double>(run.loss_scale);
  const double measured = run.pass.freeze_norms != 0 ? 0.0 : 1.0;
  if (run.pass.learns()) {  // of what is left out, too
    std::fill_n(n.weight.gradient, n.node.whole_channels, 0.0F);
    std::fill_n(n.bias.gradient, n.node.whole_channels, 0.0F);
  }
  for (Index c = 0; c < n.node.out.channels; ++c) {
    const Index w = n.numbers[c];
    const double deviation = 1.0 / std::sqrt(n.var[w] + n.epsilon);
    const double by_scale = n.product[c] * deviation;
    if (run.pass.learns()) {
      n.weight.gradient[w] = static_cast<float>(by_scale * unscale);
      n.bias.gradient[w] = static_cast<float>(n.sum[c] * unscale);
    }
    const double a = static_cast<double>(n.weight.values[w]) * deviation;
    const double k2 = -a * deviation * by_scale / n.count * measured;
    n.a[c] = static_cast<float>(a);
    n.k2[c] = static_cast<float>(k2);
    n.k1[c] = static_cast<float>(-a * n.sum[c] / n.count * measured);
  }
}

const Operation operations::batch_norm = {"batch norm", 1, shape};

}  // namespace fedtiny
