// Calls the C interface with sense and nonsense; run under sanitizers. fuzz CALLS SEED
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "fedtiny_native.h"

namespace {

std::mt19937_64 randomness;
long calls = 0, refused = 0;

int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(randomness); }
bool chance(double p) { return std::uniform_real_distribution<double>()(randomness) < p; }

// Now and then a number that makes no sense.
int odd(int sane) {
  static const int strange[] = {-1, 0, -7, 1 << 20, INT32_MAX, INT32_MIN, 4097, 3};
  return chance(0.004) ? strange[number(0, 7)] : sane;
}

void count_call(int code) {
  ++calls;
  if (code == 0) return;
  ++refused;
  if (std::strlen(fedtiny_last_error()) == 0) std::abort();
}

std::vector<float> floats(std::size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(randomness);
  if (count > 0 && chance(0.02)) values[count / 2] = NAN;
  if (count > 0 && chance(0.02)) values[count / 3] = INFINITY;
  return values;
}

fedtiny_node random_node(int place) {
  fedtiny_node n{};
  n.kind = odd(place == 0 ? 0 : number(1, 10));
  n.first = odd(place == 0 ? -1 : number(std::max(0, place - 2), place - 1));
  n.second = odd(n.kind == FEDTINY_ADD ? number(std::max(0, place - 3), place - 1) : -1);
  n.channels = odd(number(1, 6));
  n.height = odd(number(1, 9));
  n.width = odd(number(1, 9));
  for (int axis = 0; axis < 2; ++axis) {
    n.kernel[axis] = odd(number(1, 3));
    n.stride[axis] = odd(number(1, 3));
    n.padding[axis] = odd(number(0, n.kernel[axis] > 0 ? n.kernel[axis] / 2 : 1));
  }
  n.bias = odd(number(0, 1));
  n.count_padding = number(0, 1);
  n.epsilon = chance(0.01) ? NAN : 1e-5F;
  n.momentum = chance(0.01) ? -1.0F : 0.1F;
  n.probability = chance(0.01) ? 2.0F : 0.5F;
  return n;
}

// Mostly ends in something flat.
std::vector<fedtiny_node> random_nodes() {
  std::vector<fedtiny_node> nodes;
  const int count = number(1, 9);
  for (int i = 0; i < count; ++i) nodes.push_back(random_node(i));
  for (fedtiny_node& node : nodes)
    if (node.kind == FEDTINY_LINEAR && chance(0.9)) node.kind = FEDTINY_CONVOLUTION;
  fedtiny_node flat{};
  flat.kind = FEDTINY_FLATTEN;
  flat.first = count - 1;
  flat.second = -1;
  fedtiny_node linear = flat;
  linear.kind = FEDTINY_LINEAR;
  linear.first = count;
  linear.channels = number(1, 5);
  linear.bias = 1;
  nodes.push_back(flat);
  nodes.push_back(linear);
  for (int i = 1; i < static_cast<int>(nodes.size()); ++i)  // most nodes are read by someone
    if (chance(0.7) && nodes[i].kind != FEDTINY_ADD) nodes[i].first = i - 1;
  return nodes;
}

struct Net {
  fedtiny_network* handle = nullptr;
  std::vector<fedtiny_node> nodes;
  std::vector<std::int64_t> kept;
  fedtiny_options options{};
  std::size_t image = 0;
  ~Net() { fedtiny_destroy(handle); }
};

void prepare(Net& net) {
  fedtiny_options& o = net.options;
  o = {};
  o.batch = odd(number(1, 20));
  o.forward_batch = odd(number(1, 20));
  o.threads = chance(0.95) ? number(1, 2) : odd(3);
  if (o.threads > 64) o.threads = -1;
  o.lanes = odd(chance(0.5) ? 0 : 4 << number(0, 2));
  o.half = odd(number(0, 1));
  o.recompute = odd(number(0, 1));
  o.remove_dead = odd(number(0, 1));
  o.optimizer = odd(number(0, 1));
  o.input_gradient = number(0, 1);
  o.top_count = odd(number(0, 30));
  o.proximal = odd(number(0, 1));
  o.budget = chance(0.05) ? number(-1, 10000) : 32 << 20;
  const std::size_t count = net.nodes.size();
  net.kept.assign(count, -1);
  std::vector<std::vector<std::int32_t>> positions(count);
  std::vector<const std::int32_t*> pointers(count, nullptr);
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t size = 0;
    if (fedtiny_size(net.handle, static_cast<int>(i), FEDTINY_WEIGHT, &size) != 0) continue;
    if (size > 100000 || chance(0.2)) continue;
    const double density = std::uniform_real_distribution<double>()(randomness);
    for (int p = 0; p < size; ++p)
      if (chance(density)) positions[i].push_back(odd(p));
    net.kept[i] = static_cast<std::int64_t>(positions[i].size());
    if (chance(0.01)) net.kept[i] = std::min(net.kept[i], std::int64_t{odd(2)});
    pointers[i] = chance(0.01) ? nullptr : positions[i].data();
  }
  fedtiny_memory planned{}, taken{};
  const int ok = fedtiny_plan(net.handle, &o, net.kept.data(), &planned);
  count_call(ok);
  const int ready = fedtiny_prepare(net.handle, &o, net.kept.data(), pointers.data());
  count_call(ready);
  if (ready != 0) return;
  count_call(fedtiny_taken(net.handle, &taken));
  if (ok != 0 || taken.total > o.budget) std::abort();
  if (o.remove_dead == 0 && taken.total != planned.total) std::abort();
}

void set_all(Net& net) {
  for (std::size_t i = 0; i < net.nodes.size(); ++i)
    for (int parameter = 0; parameter < 6; ++parameter) {
      std::int64_t size = 0;
      if (fedtiny_size(net.handle, static_cast<int>(i), parameter, &size) != 0) continue;
      if (parameter == FEDTINY_WEIGHT && net.kept[i] >= 0) size = net.kept[i];
      std::vector<float> values = floats(static_cast<std::size_t>(size));
      if (parameter == FEDTINY_RUNNING_VAR && chance(0.95))
        for (float& v : values) v = std::fabs(v);
      count_call(fedtiny_set(net.handle, static_cast<int>(i), parameter, values.data(),
                             chance(0.99) ? size : odd(5)));
    }
}

void get_something(Net& net) {
  const int node = odd(number(0, static_cast<int>(net.nodes.size()) - 1));
  const int parameter = odd(number(0, 7));
  std::int64_t size = 0;
  if (fedtiny_size(net.handle, node, parameter, &size) != 0)
    size = 3;
  else if (parameter == FEDTINY_WEIGHT && net.kept[static_cast<std::size_t>(node)] >= 0)
    size = net.kept[static_cast<std::size_t>(node)];
  std::vector<double> doubles(static_cast<std::size_t>(size));
  std::vector<float> singles(static_cast<std::size_t>(size));
  count_call(fedtiny_get(net.handle, node, parameter, doubles.data(), size));
  count_call(fedtiny_get_gradient(net.handle, node, parameter, singles.data(), size));
}

void run(Net& net) {
  const int max_batch = std::max(net.options.batch, net.options.forward_batch);
  const int count = odd(number(1, std::min(20, std::max(1, max_batch))));
  const auto real = static_cast<std::size_t>(count > 0 && count <= 64 ? count : 0);
  const std::vector<float> images = floats(real * net.image);
  std::vector<std::int64_t> labels(real);
  const int classes = net.nodes.back().channels;
  for (std::int64_t& label : labels) label = odd(number(0, std::max(0, classes - 1)));
  std::vector<std::int32_t> indices(30);
  std::vector<float> values(30), dense, gradient(real * net.image);
  std::vector<float> logits(real * static_cast<std::size_t>(std::max(1, classes)));
  fedtiny_grad_query query{odd(number(0, static_cast<int>(net.nodes.size()) - 1)),
                           odd(number(0, 30)), indices.data(), values.data(), nullptr};
  if (query.count > 30) query.count = 30;
  std::int64_t size = 0;
  if (chance(0.3) && fedtiny_size(net.handle, query.node, FEDTINY_WEIGHT, &size) == 0) {
    dense.resize(static_cast<std::size_t>(size));
    query.dense = dense.data();
  }
  fedtiny_pass pass{};
  pass.mode = odd(number(0, 4));
  pass.images = chance(0.01) ? nullptr : images.data();
  pass.labels = chance(pass.mode < FEDTINY_MEASURE ? 0.5 : 0.99) ? labels.data() : nullptr;
  pass.count = count;
  pass.seed = randomness();
  pass.epsilon = chance(0.5) ? 0.01 : odd(0);
  pass.queries = chance(0.99) ? &query : nullptr;
  pass.query_count = chance(0.5) ? 0 : odd(1) == 1;
  pass.logits = chance(0.5) ? logits.data() : nullptr;
  fedtiny_score score{};
  count_call(
      fedtiny_run(net.handle, chance(0.99) ? &pass : nullptr, chance(0.99) ? &score : nullptr));
  count_call(fedtiny_get_input_gradient(net.handle, gradient.data(),
                                        static_cast<std::int64_t>(gradient.size())));
}

void live_once() {
  Net net;
  net.nodes = random_nodes();
  if (chance(0.02)) count_call(fedtiny_create(nullptr, 3, &net.handle));
  const int made =
      fedtiny_create(net.nodes.data(), static_cast<int>(net.nodes.size()), &net.handle);
  count_call(made);
  if (made != 0) {
    fedtiny_score score{};
    count_call(fedtiny_run(net.handle, nullptr, &score));
    return;
  }
  const fedtiny_node& input = net.nodes[0];
  net.image = static_cast<std::size_t>(input.channels) * static_cast<std::size_t>(input.height) *
              static_cast<std::size_t>(input.width);
  if (net.image > 1 << 20) return;
  for (int round = 0; round < 3; ++round) {
    prepare(net);
    set_all(net);
    const double rest_decay = chance(0.5) ? 1e-4 : 0.0, proximal = chance(0.3) ? 0.1 : 0.0;
    const fedtiny_rates rates = {chance(0.05) ? NAN : 0.01, 0.9, 1e-4, rest_decay,
                                 0.9, 0.999, 1e-8, proximal};
    if (chance(0.9)) count_call(fedtiny_start(net.handle, &rates));
    for (int i = 0; i < 6; ++i) run(net);
    get_something(net);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long goal = argc > 1 ? std::atol(argv[1]) : 1000;
  randomness.seed(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  while (calls < goal) live_once();
  std::printf("%ld calls, %ld refused\n", calls, refused);
  return 0;
}
