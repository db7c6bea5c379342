// Batch norm: from sums to what views and gradients go by.
#include <cmath>

#include "network.h"

namespace fedtiny {

// The bias that was left out of what a convolution stored, since batch norm alone reads it.
const float* Network::bias_before(int place) const {
  const Node& source = node(node(place).first);
  const bool leads = source.kind == FEDTINY_CONVOLUTION && source.consumers.size() == 1;
  return leads ? layer(node(place).first).bias : nullptr;
}

const float* Network::norm_scale(int place) const {
  return at<float>(plan_.values) + plan_.norms[static_cast<std::size_t>(place)].first_scale;
}

const float* Network::norm_shift(int place) const {
  return at<float>(plan_.values) + plan_.norms[static_cast<std::size_t>(place)].first_shift;
}

// From the pieces' sums to the statistics of the batch. A convolution's bias was left out of what
// is stored: it changes the mean alone.
void Network::finish_norm(int place, Index bands, Index band) {
  const Norm& n = norm(place);
  const Node& me = node(place);
  const Index channels = me.out.channels;
  const double count = static_cast<double>(pass_.images * me.out.plane());
  if (count < 2) refuse("batch norm cannot measure a single value a channel");
  const double epsilon = std::max(pass_.epsilon, static_cast<double>(me.epsilon));
  const float *bias = bias_before(place), *scale = norm_scale(place), *shift = norm_shift(place);
  for (Index c = 0; c < channels; ++c) {
    double sum = 0, square = 0;
    for (Index piece = 0; piece < blocks_ * bands; ++piece) {
      const float* from = at<float>(plan_.sums) + (piece * channels + c) * 3;
      const Index rows = std::min(band, me.out.height - piece % bands * band);
      if (rows <= 0) continue;
      const auto values = static_cast<double>(lanes_in(piece / bands) * rows * me.out.width);
      const double own = static_cast<double>(from[0]), pilot = static_cast<double>(from[2]);
      sum += own + values * pilot;
      square += static_cast<double>(from[1]) + pilot * (2 * own + values * pilot);
    }
    const double mean = sum / count;
    const double var = std::max(0.0, square / count - mean * mean);
    const Index w = n.numbers[c];
    n.mean[w] = mean + (bias != nullptr ? static_cast<double>(bias[w]) : 0.0);
    n.var[w] = var;
    n.batch_mean[c] = static_cast<float>(mean);
    n.a[c] = static_cast<float>(1.0 / std::sqrt(var + epsilon));
    n.scale[c] = scale[w] * n.a[c];
    n.shift[c] = static_cast<float>(static_cast<double>(shift[w]) - mean * static_cast<double>(n.scale[c]));
    if (pass_.update_statistics) {
      const double m = static_cast<double>(me.momentum);
      const auto moved = [m](float from, double to) {
        return static_cast<float>((1 - m) * static_cast<double>(from) + m * to);
      };
      n.running_mean[w] = moved(n.running_mean[w], n.mean[w]);
      n.running_var[w] = moved(n.running_var[w], var * count / (count - 1));
    }
  }
}

void Network::use_running_statistics(int place) {
  const Norm& n = norm(place);
  const Node& me = node(place);
  const float *bias = bias_before(place), *scale = norm_scale(place), *shift = norm_shift(place);
  for (Index c = 0; c < me.out.channels; ++c) {
    const Index w = n.numbers[c];
    const double deviation =
        std::sqrt(static_cast<double>(n.running_var[w]) + static_cast<double>(me.epsilon));
    const double a = static_cast<double>(scale[w]) / deviation;
    const double centre = static_cast<double>(n.running_mean[w]) -
                          (bias != nullptr ? static_cast<double>(bias[w]) : 0.0);
    n.scale[c] = static_cast<float>(a);
    n.shift[c] = static_cast<float>(static_cast<double>(shift[w]) - centre * a);
  }
}

// dz = a * (d - mean(d) - xhat * mean(d * xhat)) as a * d + k1 + k2 * (z - mean).
void Network::finish_norm_gradient(int place) {
  const Norm& n = norm(place);
  const Node& me = node(place);
  const auto index = static_cast<std::size_t>(place);
  const float* scale = norm_scale(place);
  float* all = at<float>(plan_.gradients);
  const double epsilon = std::max(pass_.epsilon, static_cast<double>(me.epsilon));
  const double count = static_cast<double>(pass_.images * me.out.plane());
  if (pass_.keep_gradients) {  // of what is left out, too
    std::fill_n(all + plan_.norms[index].first_scale, me.whole_channels, 0.0F);
    std::fill_n(all + plan_.norms[index].first_shift, me.whole_channels, 0.0F);
  }
  for (Index c = 0; c < me.out.channels; ++c) {
    const Index w = n.numbers[c];
    const double deviation = 1.0 / std::sqrt(n.var[w] + epsilon);
    const double by_scale = n.product[c] * deviation;
    if (pass_.keep_gradients) {
      const double unscale = 1.0 / static_cast<double>(loss_scale_);
      all[plan_.norms[index].first_scale + w] = static_cast<float>(by_scale * unscale);
      all[plan_.norms[index].first_shift + w] = static_cast<float>(n.sum[c] * unscale);
    }
    const double a = static_cast<double>(scale[w]) * deviation;
    const double k2 = -a * deviation * by_scale / count;
    n.a[c] = static_cast<float>(a);
    n.k2[c] = static_cast<float>(k2);
    n.k1[c] = static_cast<float>(-a * n.sum[c] / count);
  }
}

}  // namespace fedtiny
