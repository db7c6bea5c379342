// Trains a network from a file, and compares gradients and parameters with those expected.
// replay FILE; tests/native/replay.py writes the file.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fedtiny_native.h"

namespace {

std::FILE* file = nullptr;

void stop(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, fedtiny_last_error());
  std::exit(1);
}

template <class T>
std::vector<T> read(std::size_t count) {
  std::vector<T> values(count);
  if (std::fread(values.data(), sizeof(T), count, file) != count) stop("the file ends early");
  return values;
}

template <class T>
T read() {
  return read<T>(1)[0];
}

template <class T>
std::vector<T> read_list() {
  return read<T>(static_cast<std::size_t>(read<std::int64_t>()));
}

// Values of a node's parameter.
struct Tensor {
  std::int32_t node = read<std::int32_t>(), parameter = read<std::int32_t>();
  double allowed = read<double>();  // how far each may be off
  std::vector<float> values = read_list<float>();
  std::int64_t count() const { return static_cast<std::int64_t>(values.size()); }
};

std::vector<Tensor> read_tensors() {
  std::vector<Tensor> found(static_cast<std::size_t>(read<std::int64_t>()));
  return found;
}

double worst = 0;  // of what is allowed
int compared = 0;

template <class T>
void compare(const char* what, const Tensor& expected, const std::vector<T>& found) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double off =
        std::fabs(static_cast<double>(expected.values[i]) - static_cast<double>(found[i]));
    const double share = off / expected.allowed;
    ++compared;
    if (share > worst) worst = share;
    if (share <= 1) continue;
    std::fprintf(stderr, "%s of node %d, parameter %d: value %zu is %g, not %g\n", what,
                 static_cast<int>(expected.node), static_cast<int>(expected.parameter), i,
                 static_cast<double>(found[i]), static_cast<double>(expected.values[i]));
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || (file = std::fopen(argv[1], "rb")) == nullptr) stop("replay FILE");
  const auto nodes = read_list<fedtiny_node>();
  const auto options = read<fedtiny_options>();
  std::vector<std::int64_t> kept;
  std::vector<std::vector<std::int32_t>> positions;
  std::vector<const std::int32_t*> pointers;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    kept.push_back(read<std::int64_t>());
    positions.push_back(kept[i] < 0 ? std::vector<std::int32_t>()
                                    : read<std::int32_t>(static_cast<std::size_t>(kept[i])));
  }
  for (const auto& own : positions) pointers.push_back(own.data());
  const auto images = read_list<float>();
  const auto labels = read_list<std::int64_t>();
  const auto rates = read<fedtiny_rates>();
  const auto steps = read<std::int32_t>();

  fedtiny_network* net = nullptr;
  if (fedtiny_create(nodes.data(), static_cast<int>(nodes.size()), &net) != 0) stop("create");
  if (fedtiny_prepare(net, &options, kept.data(), pointers.data()) != 0) stop("prepare");
  for (const Tensor& t : read_tensors())
    if (fedtiny_set(net, t.node, t.parameter, t.values.data(), t.count()) != 0) stop("set");
  if (fedtiny_start(net, &rates) != 0) stop("start");

  fedtiny_score score{};
  fedtiny_pass pass{};
  pass.images = images.data();
  pass.labels = labels.data();
  pass.count = static_cast<std::int64_t>(labels.size());
  pass.mode = FEDTINY_GRADIENTS;
  if (fedtiny_run(net, &pass, &score) != 0) stop("gradients");
  for (const Tensor& t : read_tensors()) {
    std::vector<float> found(t.values.size());
    if (fedtiny_get_gradient(net, t.node, t.parameter, found.data(), t.count()) != 0) stop("get");
    compare("gradient", t, found);
  }
  pass.mode = FEDTINY_TRAIN;
  for (int step = 0; step < steps; ++step)
    if (fedtiny_run(net, &pass, &score) != 0) stop("train");
  for (const Tensor& t : read_tensors()) {
    std::vector<double> found(t.values.size());
    if (fedtiny_get(net, t.node, t.parameter, found.data(), t.count()) != 0) stop("get");
    compare("value", t, found);
  }
  fedtiny_destroy(net);
  std::printf("%s: %d values, %.3f of what is allowed\n", fedtiny_instructions(), compared, worst);
  return 0;
}
