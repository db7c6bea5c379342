// Cross-entropy and accuracy.
#include <cmath>

#include "run.h"

namespace fedtiny {
namespace {

// One block's logits as [class][lane].
float* block_logits(Run& run, Index block) {
  const Index classes = run.storage.nodes.back().out.channels;
  View view;
  view.tensor = run.storage.program.output;
  LoadRows load = run.view_rows(view, 0, block * classes * run.lanes);
  load.columns = load.width = classes;
  run.kernels.load_rows(load, run.storage.logits);
  return run.storage.logits;
}

// One image's logits, a vector apart, become the gradient of its loss.
fedtiny_score image_loss(float* own, Index lanes, Index classes, Index label, double share) {
  const auto logit = [&](Index c) { return static_cast<double>(own[c * lanes]); };
  Index best = 0;
  for (Index c = 1; c < classes; ++c)
    if (own[c * lanes] > own[best * lanes]) best = c;
  const double top = logit(best);
  double sum = 0;
  for (Index c = 0; c < classes; ++c) sum += std::exp(logit(c) - top);
  const double loss = std::log(sum) + top - logit(label);
  for (Index c = 0; c < classes; ++c) {
    const double p = std::exp(logit(c) - top) / sum;
    own[c * lanes] = static_cast<float>((p - (c == label ? 1.0 : 0.0)) * share);
  }
  return {loss, best == label ? 1 : 0};
}

}  // namespace

fedtiny_score cross_entropy(Run& run, const std::int64_t* labels) {
  const Index classes = run.storage.nodes.back().out.channels, lanes = run.lanes;
  const double share = static_cast<double>(run.loss_scale) / static_cast<double>(run.pass.count);
  fedtiny_score total{};
  for (Index block = 0; block < run.blocks; ++block) {
    float* rows = block_logits(run, block);
    fedtiny_score score{};
    for (Index lane = 0; lane < run.lanes_in(block); ++lane) {
      const Index label = labels[block * lanes + lane];
      const fedtiny_score own = image_loss(rows + lane, lanes, classes, label, share);
      score.loss += own.loss;
      score.correct += own.correct;
    }
    for (Index lane = run.lanes_in(block); lane < lanes; ++lane)
      for (Index c = 0; c < classes; ++c) rows[c * lanes + lane] = 0.0F;
    total.loss += score.loss;
    total.correct += score.correct;
    if (!run.pass.backward()) continue;
    char* to = run.gradient(run.storage.program.output, block * classes * lanes);
    run.kernels.store_rows(run.stored(one_row(rows, classes), to));
  }
  return total;
}

void read_logits(Run& run, float* logits) {
  const Index classes = run.storage.nodes.back().out.channels;
  for (Index block = 0; block < run.blocks; ++block)
    run.unpack(block_logits(run, block), block, logits + block * run.lanes * classes, classes,
               classes);
}

}  // namespace fedtiny
