// What an engine measures of gradients, on one batch and without a step of training.
#include <algorithm>

#include "engine.h"

namespace fedtiny::device {

void Engine::measure_gradients(const RngKey& key, std::vector<Gradient>& asked, double epsilon,
                               bool fisher, bool at_positions) {
  const auto samples = static_cast<std::int64_t>(data_.indices.size());
  Generator draw = key.generator("gradient batch");
  const std::int64_t size = std::min(batch(), samples);
  Samples chosen = draw.choice(samples, size);
  for (std::int64_t& place : chosen) place = data_.indices[static_cast<std::size_t>(place)];
  const Draws draws = spec_.preparation.draws(draw, size);
  fedtiny_pass pass{};
  pass.mode = FEDTINY_MEASURE;
  pass.seed = draw.up_to(MAX_SEED);
  pass.epsilon = epsilon;
  pass.freeze_norms = spec_.train.freezes_bn(key.round) ? 1 : 0;
  std::vector<std::vector<float>> factors;
  std::vector<fedtiny_grad_query> queries;
  for (Gradient& own : asked) {
    const Tensor& layer = spec_.params.prunable[static_cast<std::size_t>(own.layer)];
    const fedtiny_node& node = spec_.nodes[static_cast<std::size_t>(layer.node)];
    const std::int64_t groups = node.kind == FEDTINY_CONVOLUTION ? node.groups : 1;
    if (fisher)
      factors.emplace_back(static_cast<std::size_t>(layer.shape[0] + layer.shape[1] * groups));
    fedtiny_grad_query query{};
    query.node = layer.node;
    query.count = static_cast<std::int32_t>(own.values.size());
    query.indices = own.positions.places.data();
    query.values = own.values.data();
    query.fisher = fisher ? factors.back().data() : nullptr;
    query.at_positions = at_positions ? 1 : 0;
    queries.push_back(query);
  }
  pass.queries = queries.data();
  pass.query_count = static_cast<std::int32_t>(queries.size());
  Batch batch;
  fill(batch, chosen.data(), size, &draws, 0);
  run(pass, batch);
  for (std::size_t i = 0; i < asked.size() && !at_positions; ++i) {
    asked[i].positions.places.resize(static_cast<std::size_t>(queries[i].count));
    asked[i].values.resize(static_cast<std::size_t>(queries[i].count));
  }
}

std::vector<Gradient> Engine::top_gradients(const RngKey& key,
                                            const std::vector<LayerCount>& counts, double epsilon,
                                            bool fisher) {
  std::vector<Gradient> asked;
  std::int64_t most = 0;
  for (const auto& [layer, count] : counts) {
    const std::int64_t size = spec_.params.prunable[static_cast<std::size_t>(layer)].size;
    const auto room = static_cast<std::size_t>(std::min(count, size));
    most = std::max(most, std::min(count, size));
    asked.push_back({layer, {false, std::vector<std::int32_t>(room)}, std::vector<float>(room)});
  }
  reserve(0, most, true);
  measure_gradients(key, asked, epsilon, fisher, false);
  return asked;
}

void Engine::gradients_at(const RngKey& key, std::vector<Gradient>& asked, double epsilon,
                          bool fisher) {
  reserve(0, 0, true);
  measure_gradients(key, asked, epsilon, fisher, true);
}

}  // namespace fedtiny::device
