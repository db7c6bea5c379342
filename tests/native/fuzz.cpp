// Calls the C interface with sense and nonsense; run under sanitizers. fuzz CALLS SEED
#include <algorithm>
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

struct Size {
  int channels, height, width;
};

// Networks of nodes that mostly fit what they read.
struct Drawing {
  std::vector<fedtiny_node> nodes;
  std::vector<Size> sizes;  // of what each node gives, if all is well

  void add(const fedtiny_node& node, const Size& size) {
    nodes.push_back(node);
    sizes.push_back(size);
  }
  int last() const { return static_cast<int>(nodes.size()) - 1; }
};

bool reads_two(int kind) {
  return kind == FEDTINY_ADD || kind == FEDTINY_MULTIPLY || kind == FEDTINY_CONCAT;
}

bool fits_second(int kind, const Size& a, const Size& b) {
  const bool same_plane = a.height == b.height && a.width == b.width;
  if (kind == FEDTINY_CONCAT) return same_plane;
  const bool one_value = kind == FEDTINY_MULTIPLY && b.height == 1 && b.width == 1;
  return a.channels == b.channels && (same_plane || one_value);
}

int divisor_of(int whole) {
  int found = 1;
  for (int d = 1; d <= whole; ++d)
    if (whole % d == 0 && chance(0.5)) found = d;
  return found;
}

bool is_window(int kind) {
  return kind == FEDTINY_CONVOLUTION || kind == FEDTINY_MAX_POOL || kind == FEDTINY_MEAN_POOL;
}

void draw_window(fedtiny_node& n, const Size& in) {
  const bool layer = n.kind == FEDTINY_CONVOLUTION;
  const int sides[2] = {in.height, in.width};
  for (int axis = 0; axis < 2; ++axis) {
    n.kernel[axis] = odd(number(1, std::min(3, sides[axis])));
    n.stride[axis] = odd(number(1, 3));
    n.padding[axis] = odd(number(0, std::clamp(n.kernel[axis] / 2, 0, 3)));
    n.padding_end[axis] = odd(layer && chance(0.3) ? number(0, 2) : n.padding[axis]);
    n.dilation[axis] = odd(layer && sides[axis] > 6 && chance(0.3) ? number(1, 3) : 1);
  }
  n.ceil = odd(!layer && chance(0.5) ? 1 : 0);
}

int windows(const fedtiny_node& n, int axis, int side) {
  const long stride = std::max(1, n.stride[axis]), span = (n.kernel[axis] - 1L) * n.dilation[axis];
  const long left = side + 0L + n.padding[axis] + n.padding_end[axis] - span - 1;
  long count = (n.ceil != 0 ? (left + stride - 1) / stride : left / stride) + 1;
  if (n.ceil != 0 && (count - 1) * stride >= side + n.padding[axis]) --count;
  return static_cast<int>(std::clamp(count, 1L, 100L));
}

// What a node gives that reads this, as far as it makes sense.
Size draw_size(fedtiny_node& n, const Size& in, const Size& second) {
  switch (n.kind) {
    case FEDTINY_CONVOLUTION:
      n.groups = odd(divisor_of(in.channels));
      n.channels = odd(std::max(1, n.groups % 64) * number(1, 5));
      return {n.channels, windows(n, 0, in.height), windows(n, 1, in.width)};
    case FEDTINY_LINEAR: return {n.channels, in.height, in.width};
    case FEDTINY_MAX_POOL:
    case FEDTINY_MEAN_POOL: return {in.channels, windows(n, 0, in.height), windows(n, 1, in.width)};
    case FEDTINY_GROUP_NORM: n.groups = odd(divisor_of(in.channels)); return in;
    case FEDTINY_ADAPTIVE_POOL: return {in.channels, n.height, n.width};
    case FEDTINY_FLATTEN: return {in.channels * in.height * in.width, 1, 1};
    case FEDTINY_CONCAT: return {in.channels + second.channels, in.height, in.width};
    case FEDTINY_UPSAMPLE:
      n.height = odd(in.height * number(1, 2));
      n.width = odd(in.width * number(1, 2));
      return {in.channels, n.height, n.width};
    case FEDTINY_RESHAPE:
      n.channels = odd(in.height);
      n.height = odd(in.channels);
      n.width = odd(in.width);
      return {n.channels, n.height, n.width};
    case FEDTINY_PERMUTE: {
      const int sides[3] = {in.channels, in.height, in.width};
      int axes[3] = {0, 1, 2};
      std::shuffle(axes, axes + 3, randomness);
      for (int axis = 0; axis < 3; ++axis) n.order[axis] = odd(axes[axis]);
      return {sides[axes[0]], sides[axes[1]], sides[axes[2]]};
    }
    case FEDTINY_SLICE:
      n.start = odd(number(0, in.channels - 1));
      n.channels = odd(number(1, std::max(1, in.channels - std::clamp(n.start, 0, in.channels))));
      return {n.channels, in.height, in.width};
    default: return in;
  }
}

fedtiny_node plain_node(int kind, int first) {
  fedtiny_node n{};
  n.kind = kind;
  n.first = first;
  n.second = n.shared = -1;
  n.groups = 1;
  for (int axis = 0; axis < 2; ++axis) n.kernel[axis] = n.stride[axis] = n.dilation[axis] = 1;
  n.epsilon = chance(0.01) ? NAN : 1e-5F;
  n.momentum = chance(0.01) ? -1.0F : 0.1F;
  n.probability = chance(0.01) ? 2.0F : 0.5F;
  n.slope = chance(0.01) ? INFINITY : 0.1F;
  return n;
}

// Another run of a layer that is there, if there is one that fits.
void draw_sharing(fedtiny_node& n, const Drawing& drawing) {
  for (int i = 1; i <= drawing.last(); ++i) {
    const fedtiny_node& owner = drawing.nodes[i];
    if (owner.kind != n.kind || owner.shared >= 0 || n.kind == FEDTINY_BATCH_NORM) continue;
    const fedtiny_node before = n;
    n = owner;
    n.first = before.first;
    n.shared = odd(i);
  }
}

void draw_node(Drawing& drawing) {
  const int place = drawing.last() + 1;
  int kind = number(1, FEDTINY_UPSAMPLE + 1);
  if (kind > FEDTINY_UPSAMPLE) kind = FEDTINY_SLICE;
  if (kind == FEDTINY_SOFTMAX || kind == FEDTINY_TRANSPOSED_CONVOLUTION) kind = odd(1);
  fedtiny_node n = plain_node(odd(kind), odd(chance(0.85) ? place - 1 : number(0, place - 1)));
  const int first = std::clamp(n.first, 0, place - 1);
  const Size in = drawing.sizes[static_cast<std::size_t>(first)];
  int second = first;
  for (int i = 0; i < place; ++i)
    if (fits_second(n.kind, in, drawing.sizes[static_cast<std::size_t>(i)]) && chance(0.5))
      second = i;
  if (reads_two(n.kind)) n.second = odd(second);
  n.channels = odd(number(1, 6));
  n.height = odd(number(1, 9));
  n.width = odd(number(1, 9));
  n.bias = odd(number(0, 1));
  n.count_padding = number(0, 1);
  n.approximate = odd(n.kind == FEDTINY_GELU && chance(0.5) ? 1 : 0);
  if (is_window(n.kind)) draw_window(n, in);
  const Size size = draw_size(n, in, drawing.sizes[static_cast<std::size_t>(second)]);
  if (chance(0.1)) draw_sharing(n, drawing);
  const bool sane = size.channels > 0 && size.height > 0 && size.width > 0 &&
                    1L * size.channels * size.height * size.width < 2000;
  if (sane || chance(0.01)) drawing.add(n, sane ? size : Size{1, 1, 1});
}

// What nobody reads is flattened and joined before a linear layer.
std::vector<fedtiny_node> random_nodes() {
  Drawing drawing;
  fedtiny_node input = plain_node(odd(FEDTINY_INPUT), odd(-1));
  input.channels = odd(number(1, 6));
  input.height = odd(number(1, 9));
  input.width = odd(number(1, 9));
  drawing.add(input, {std::clamp(input.channels, 1, 6), std::clamp(input.height, 1, 9),
                      std::clamp(input.width, 1, 9)});
  const int count = number(1, 10);
  for (int i = 0; i < count; ++i) draw_node(drawing);
  const int drawn = drawing.last();
  int joined = -1;
  for (int i = 0; i <= drawn; ++i) {
    bool read = false;
    for (const fedtiny_node& node : drawing.nodes)
      read = read || node.first == i || node.second == i;
    if (read && i < drawn) continue;
    drawing.add(plain_node(FEDTINY_FLATTEN, i), {});
    const int flat = drawing.last();
    if (joined >= 0) {
      drawing.add(plain_node(FEDTINY_CONCAT, joined), {});
      drawing.nodes.back().second = flat;
    }
    joined = drawing.last();
  }
  drawing.add(plain_node(FEDTINY_LINEAR, joined), {});
  drawing.nodes.back().channels = number(1, 5);
  drawing.nodes.back().bias = 1;
  return drawing.nodes;
}

struct Net {
  fedtiny_network* handle = nullptr;
  std::vector<fedtiny_node> nodes;
  std::vector<std::int64_t> kept;
  fedtiny_options options{};
  std::size_t image = 0;
  ~Net() { fedtiny_destroy(handle); }
};

bool prepare(Net& net) {
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
    const bool strange = chance(0.02);
    for (int p = 0; p < size; ++p)
      if (chance(density)) positions[i].push_back(strange ? odd(p) : p);
    net.kept[i] = static_cast<std::int64_t>(positions[i].size());
    if (chance(0.01)) net.kept[i] = std::min(net.kept[i], std::int64_t{odd(2)});
    pointers[i] = chance(0.01) ? nullptr : positions[i].data();
  }
  fedtiny_memory planned{}, taken{};
  const int ok = fedtiny_plan(net.handle, &o, net.kept.data(), &planned);
  count_call(ok);
  const int ready = fedtiny_prepare(net.handle, &o, net.kept.data(), pointers.data());
  count_call(ready);
  if (ready != 0) return false;
  count_call(fedtiny_taken(net.handle, &taken));
  if (ok != 0 || taken.total > o.budget) std::abort();
  if (o.remove_dead == 0 && taken.total != planned.total) std::abort();
  return true;
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
  int layer = number(0, static_cast<int>(net.nodes.size()) - 1);
  for (int i = 0; i < 20 && net.nodes[static_cast<std::size_t>(layer)].kind != FEDTINY_CONVOLUTION;
       ++i)
    layer = number(0, static_cast<int>(net.nodes.size()) - 1);
  fedtiny_grad_query query{odd(layer), odd(number(0, 30)), indices.data(), values.data(), nullptr};
  if (query.count > 30) query.count = 30;
  std::int64_t size = 0;
  static std::vector<float> fisher(1 << 17);  // more than any layer reads and gives
  if (chance(0.3)) query.fisher = fisher.data();
  query.at_positions = odd(chance(0.3) ? 1 : 0);
  for (int i = 0; i < 30; ++i) indices[static_cast<std::size_t>(i)] = odd(i);
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
  pass.freeze_norms = chance(0.3) ? odd(1) : 0;
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
    if (!prepare(net) && chance(0.9)) continue;
    set_all(net);
    const double rest_decay = chance(0.5) ? 1e-4 : 0.0, proximal = chance(0.3) ? 0.1 : 0.0;
    const fedtiny_rates rates = {
        chance(0.05) ? NAN : 0.01, 0.9, 1e-4, rest_decay, 0.9, 0.999, 1e-8, proximal};
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
