// The C interface: nothing that is thrown gets past it.
#include <memory>
#include <new>
#include <string>

#include "network.h"

struct fedtiny_network {
  std::vector<fedtiny::Node> nodes;
  std::unique_ptr<fedtiny::Network> ready;
};

namespace {

using fedtiny::Index;
using fedtiny::refuse;

thread_local std::string last_error;

template <class Work>
int guarded(Work&& work) noexcept {
  try {
    work();
    return 0;
  } catch (const std::bad_alloc&) {
    last_error = "there is not enough memory";
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "an unknown error";
  }
  return 1;
}

template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) refuse(std::string("no ") + what + " was given");
  return *pointer;
}

fedtiny::Network& ready(const fedtiny_network* network) {
  if (!given(network, "network").ready) refuse("the network was not prepared");
  return *network->ready;
}

std::vector<Index> checked_kept(const fedtiny_network& network, const std::int64_t* kept) {
  std::vector<Index> counts(network.nodes.size(), 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const Index all = network.nodes[i].weights();
    counts[i] = kept == nullptr || kept[i] == -1 ? all : kept[i];
    if (counts[i] < 0 || counts[i] > all)
      refuse("node " + std::to_string(i) + " cannot keep " + std::to_string(counts[i]) + " of " +
             std::to_string(all) + " weights");
  }
  return counts;
}

}  // namespace

extern "C" {

const char* fedtiny_last_error(void) { return last_error.c_str(); }

const char* fedtiny_instructions(void) { return fedtiny::kernels_for(0)->name; }

int fedtiny_create(const fedtiny_node* nodes, std::int32_t count, fedtiny_network** network) {
  return guarded([&] {
    given(network, "place for the network") = nullptr;
    auto made = std::make_unique<fedtiny_network>();
    made->nodes = fedtiny::checked_nodes(nodes, count);
    *network = made.release();
  });
}

void fedtiny_destroy(fedtiny_network* network) { delete network; }

int fedtiny_size(const fedtiny_network* network, std::int32_t node, std::int32_t parameter,
                 std::int64_t* size) {
  return guarded([&] {
    given(size, "place for the size") =
        fedtiny::parameter_size(given(network, "network").nodes, node, parameter);
  });
}

int fedtiny_plan(const fedtiny_network* network, const fedtiny_options* options,
                 const std::int64_t* kept, fedtiny_memory* memory) {
  return guarded([&] {
    const auto& nodes = given(network, "network").nodes;
    const fedtiny::Options checked = fedtiny::checked_options(given(options, "options"));
    const fedtiny::Program program =
        fedtiny::program_of(nodes, checked.recompute != 0, checked.input_gradient != 0);
    given(memory, "place for the plan") =
        fedtiny::plan_of(nodes, program, checked, checked_kept(*network, kept)).memory;
  });
}

int fedtiny_prepare(fedtiny_network* network, const fedtiny_options* options,
                    const std::int64_t* kept, const std::int32_t* const* positions) {
  return guarded([&] {
    const fedtiny::Options checked = fedtiny::checked_options(given(options, "options"));
    const std::vector<Index> counts = checked_kept(given(network, "network"), kept);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const bool all = counts[i] == network->nodes[i].weights();
      if (!all && counts[i] > 0 && (positions == nullptr || positions[i] == nullptr))
        refuse("node " + std::to_string(i) + " has no positions of its kept weights");
    }
    network->ready.reset();  // its memory goes back first
    network->ready =
        std::make_unique<fedtiny::Network>(network->nodes, checked, counts, positions);
  });
}

int fedtiny_taken(const fedtiny_network* network, fedtiny_memory* memory) {
  return guarded([&] { given(memory, "place for the memory") = ready(network).memory(); });
}

int fedtiny_set(fedtiny_network* network, std::int32_t node, std::int32_t parameter,
                const float* values, std::int64_t count) {
  return guarded([&] {
    if (count != 0) given(values, "value");
    ready(network).set(node, parameter, values, count);
  });
}

int fedtiny_get(const fedtiny_network* network, std::int32_t node, std::int32_t parameter,
                double* values, std::int64_t count) {
  return guarded([&] {
    if (count != 0) given(values, "place for values");
    ready(network).get(node, parameter, values, count);
  });
}

int fedtiny_get_gradient(const fedtiny_network* network, std::int32_t node, std::int32_t parameter,
                         float* values, std::int64_t count) {
  return guarded([&] {
    if (count != 0) given(values, "place for values");
    ready(network).get_gradient(node, parameter, values, count);
  });
}

int fedtiny_get_input_gradient(const fedtiny_network* network, float* values, std::int64_t count) {
  return guarded([&] {
    given(values, "place for values");
    ready(network).get_input_gradient(values, count);
  });
}

int fedtiny_start(fedtiny_network* network, const fedtiny_rates* rates) {
  return guarded([&] { ready(network).start(given(rates, "rates")); });
}

int fedtiny_train(fedtiny_network* network, const float* images, const std::int64_t* labels,
                  std::int64_t count, std::uint64_t seed, std::int32_t update,
                  fedtiny_wanted* wanted, std::int32_t wanted_count, fedtiny_score* score) {
  return guarded([&] {
    given(images, "image");
    given(labels, "label");
    given(score, "place for the score") =
        ready(network).train(images, labels, count, seed, update != 0, wanted, wanted_count);
  });
}

int fedtiny_measure(fedtiny_network* network, const float* images, const std::int64_t* labels,
                    std::int64_t count, std::uint64_t seed, double epsilon,
                    fedtiny_wanted* wanted, std::int32_t wanted_count, fedtiny_score* score) {
  return guarded([&] {
    given(images, "image");
    given(labels, "label");
    given(score, "place for the score") =
        ready(network).measure(images, labels, count, seed, epsilon, wanted, wanted_count);
  });
}

int fedtiny_forward(fedtiny_network* network, const float* images, const std::int64_t* labels,
                    std::int64_t count, std::int32_t own_statistics, float* logits,
                    fedtiny_score* score) {
  return guarded([&] {
    given(images, "image");
    if (labels != nullptr) given(score, "place for the score");
    const fedtiny_score found =
        ready(network).forward(images, labels, count, own_statistics != 0, logits);
    if (score != nullptr) *score = found;
  });
}

}  // extern "C"
