#include "spec.h"

#include <algorithm>
#include <cmath>

namespace fedtiny::device {
namespace {

constexpr std::int64_t MAX_SIZE = std::int64_t{1} << 30;
constexpr std::int64_t MAX_BATCH = 1 << 20, MAX_ROUNDS = std::int64_t{1} << 31;
constexpr std::size_t MAX_NAMES = 4096;  // tensors, norms or nodes, which are searched by name
constexpr double PI = 3.141592653589793;

// A name that Python's repr writes as it is.
std::string plain_name(std::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return c > ' ' && c < 127 && c != '\'' && c != '"' && c != '\\';
  });
  if (name.empty() || name.size() > 255 || !plain)
    refuse("a device without Python takes names of plain letters only");
  return std::string(name);
}

std::vector<Tensor> read_tensors(const JsonView& plain) {
  std::vector<Tensor> found;
  for (const JsonView& item : plain.items("tensors")) {
    if (found.size() == MAX_NAMES) refuse("the network has too many tensors");
    Tensor tensor;
    tensor.name = plain_name(item.key());
    if (ParamSpec::find(found, tensor.name) >= 0) refuse("a tensor is named twice");
    tensor.size = 1;
    for (const JsonView& side : item.items("a shape")) {
      tensor.shape.push_back(side.whole("a side of a tensor", 0, MAX_SIZE));
      tensor.size *= tensor.shape.back();
      if (tensor.size > MAX_SIZE) refuse("the tensor " + tensor.name + " is too large");
    }
    found.push_back(std::move(tensor));
  }
  return found;
}

ParamSpec read_params(const JsonView& plain) {
  ParamSpec found;
  found.prunable = read_tensors(plain.at("prunable"));
  found.dense = read_tensors(plain.at("dense"));
  for (const JsonView& norm : plain.at("norms").items("norms")) {
    if (found.norms.size() == MAX_NAMES) refuse("the network has too many norms");
    found.norms.push_back(plain_name(norm.text("a norm")));
    if (std::find(found.norms.begin(), found.norms.end(), found.norms.back()) + 1 !=
        found.norms.end())
      refuse("a norm is named twice");
  }
  for (const Tensor& tensor : found.dense) found.dense_count += tensor.size;
  found.fingerprint = fingerprint_of(found);
  return found;
}

// Each number is a float before it is computed with, as in NumPy.
Preparation read_preparation(const JsonView& plain) {
  Preparation found;
  const std::vector<JsonView> means = plain.at("mean").items("the mean");
  const std::vector<JsonView> stds = plain.at("std").items("the std");
  if (means.size() != stds.size()) refuse("a mean needs a std");
  for (std::size_t i = 0; i < means.size(); ++i) {
    const auto mean = static_cast<float>(means[i].number("a mean"));
    const auto deviation = static_cast<float>(stds[i].number("a std"));
    found.deviations.push_back(deviation);
    found.shift.push_back(mean / deviation);
  }
  found.crop_padding = plain.at("crop_padding").whole("the padding of crops", 0, 1 << 20);
  found.flips = plain.at("flips").flag("flips");
  found.cutout = plain.at("cutout").whole("a cutout", 0, 1 << 20);
  return found;
}

std::vector<std::int64_t> read_milestones(const JsonView& train, std::int64_t rounds) {
  if (!train.has("lr_milestones")) return {(rounds + 1) / 2, (3 * rounds + 3) / 4};
  std::vector<std::int64_t> found(1);
  for (const char sign : train.at("lr_milestones").text("milestones")) {
    if (sign == ',')
      found.push_back(0);
    else if (sign >= '0' && sign <= '9' && found.back() < MAX_ROUNDS)
      found.back() = 10 * found.back() + (sign - '0');
    else if (sign != ' ')
      refuse("milestones are rounds with commas between them");
  }
  return found;
}

TrainSettings read_train(const JsonView& config) {
  TrainSettings found;
  const JsonView plain = config.at("train");
  const std::string_view optimizer = plain.at("optimizer").text("an optimizer");
  if (optimizer != "adam" && optimizer != "sgd")
    refuse("a device without Python trains with adam or sgd, not " + std::string(optimizer));
  found.adam = optimizer == "adam";
  const auto number = [&plain](const char* name, double usual) {
    return plain.has(name) ? plain.at(name).number(name) : usual;
  };
  found.lr = number("lr", found.adam ? 1e-3 : 0.05);
  found.weight_decay = number("weight_decay", found.adam ? 1e-4 : 5e-4);
  found.proximal_mu = number("proximal_mu", 0);
  found.freeze_bn = number("freeze_bn", 1);
  found.lr_final = number("lr_final", 0);
  found.lr_gamma = number("lr_gamma", 0.1);
  found.decay_norms = plain.at("decay_norms").flag("decay_norms");
  found.batch = plain.at("batch_size").whole("the batch size", 1, MAX_BATCH);
  found.lr_warmup = plain.at("lr_warmup").whole("the warm-up", 0, MAX_ROUNDS);
  found.rounds = config.at("rounds").whole("the rounds", 0, MAX_ROUNDS);
  const std::string_view schedule = plain.at("lr_schedule").text("a schedule");
  if (schedule == "cosine")
    found.schedule = TrainSettings::Schedule::cosine;
  else if (schedule == "steps")
    found.schedule = TrainSettings::Schedule::steps;
  else if (schedule != "constant")
    refuse("a device without Python does not know the schedule " + std::string(schedule));
  found.milestones = read_milestones(plain, found.rounds);
  return found;
}

std::int32_t small(const JsonView& plain, const char* name) {
  return static_cast<std::int32_t>(plain.at(name).whole(name, 0, 0x7fffffff));
}

template <std::size_t N>
void read_list(const JsonView& plain, const char* name, std::int32_t (&to)[N]) {
  const std::vector<JsonView> found = plain.at(name).items(name);
  if (found.size() != N) refuse(std::string(name) + " has another length than it must");
  for (std::size_t i = 0; i < N; ++i)
    to[i] = static_cast<std::int32_t>(found[i].whole(name, 0, 0x7fffffff));
}

fedtiny_node read_node(const JsonView& plain) {
  fedtiny_node node{};
  node.kind = small(plain, "kind");
  const std::vector<JsonView> inputs = plain.at("inputs").items("inputs");
  const auto input = [&inputs](std::size_t i) {
    return i < inputs.size() ? static_cast<std::int32_t>(inputs[i].whole("inputs", 0, 0x7fffffff))
                             : -1;
  };
  node.first = input(0);
  node.second = input(1);
  node.shared = -1;
  node.channels = small(plain, "channels");
  std::int32_t size[2];
  read_list(plain, "size", size);
  node.height = size[0];
  node.width = size[1];
  read_list(plain, "kernel", node.kernel);
  read_list(plain, "stride", node.stride);
  read_list(plain, "padding", node.padding);
  read_list(plain, plain.at("padding_end").is_null() ? "padding" : "padding_end",
            node.padding_end);
  read_list(plain, "dilation", node.dilation);
  read_list(plain, "order", node.order);
  node.groups = small(plain, "groups");
  node.start = small(plain, "start");
  node.bias = plain.at("bias").flag("bias") ? 1 : 0;
  node.count_padding = plain.at("count_padding").flag("count_padding") ? 1 : 0;
  node.ceil = plain.at("ceil").flag("ceil") ? 1 : 0;
  node.approximate = plain.at("approximate").flag("approximate") ? 1 : 0;
  node.epsilon = static_cast<float>(plain.at("epsilon").number("epsilon"));
  node.momentum = static_cast<float>(plain.at("momentum").number("momentum"));
  node.probability = static_cast<float>(plain.at("probability").number("probability"));
  node.slope = static_cast<float>(plain.at("slope").number("slope"));
  const bool by_axis = node.kind == FEDTINY_CONCAT || node.kind == FEDTINY_SLICE;
  if (by_axis && plain.at("axis").whole("axis") != 0)
    refuse("the native library does not join or cut along rows or columns");
  if (node.kind == FEDTINY_DROPOUT && plain.at("by_channel").flag("by_channel"))
    refuse("the native library does not have dropout of channels");
  return node;
}

// The tensors that a node holds, in the order of fedtiny_parameter.
std::vector<const char*> parts_of(const fedtiny_node& node) {
  switch (node.kind) {
    case FEDTINY_CONVOLUTION:
    case FEDTINY_LINEAR:
      return node.bias != 0 ? std::vector{"weight", "bias"} : std::vector{"weight"};
    case FEDTINY_BATCH_NORM: return {"weight", "bias", "running_mean", "running_var"};
    case FEDTINY_GROUP_NORM:
    case FEDTINY_LAYER_NORM: return {"weight", "bias"};
    default: return {};
  }
}

// Give every tensor its node; a layer that runs again names its first run.
void find_places(Spec& spec, const std::vector<JsonView>& graph) {
  std::vector<std::string_view> names;
  for (const JsonView& plain : graph) names.push_back(plain.at("name").text("a name"));
  for (std::size_t i = 0; i < graph.size(); ++i) {
    fedtiny_node& node = spec.nodes[i];
    if (names[i].empty()) continue;
    const auto first = std::find(names.begin(), names.end(), names[i]) - names.begin();
    if (first != static_cast<std::ptrdiff_t>(i)) {
      node.shared = static_cast<std::int32_t>(first);
      continue;
    }
    const bool is_layer = node.kind == FEDTINY_CONVOLUTION || node.kind == FEDTINY_LINEAR;
    std::int32_t parameter = is_layer ? FEDTINY_WEIGHT : FEDTINY_SCALE;
    for (const char* part : parts_of(node)) {
      const std::string name = std::string(names[i]) + "." + part;
      for (auto* tensors : {&spec.params.prunable, &spec.params.dense}) {
        const int place = ParamSpec::find(*tensors, name);
        if (place < 0) continue;
        (*tensors)[static_cast<std::size_t>(place)].node = static_cast<std::int32_t>(i);
        (*tensors)[static_cast<std::size_t>(place)].parameter = parameter;
      }
      ++parameter;
    }
  }
}

void check_places(const ParamSpec& params) {
  for (const Tensor& tensor : params.prunable)
    if (tensor.parameter != FEDTINY_WEIGHT)
      refuse("'" + tensor.name + "' is no weight that could be pruned");
  for (const Tensor& tensor : params.dense)
    if (tensor.node < 0) refuse("the network has no tensor '" + tensor.name + "'");
  for (const std::string& norm : params.norms)
    for (const char* part : {".running_mean", ".running_var"})
      if (ParamSpec::find(params.dense, norm + part) < 0)
        refuse("the network has no batch norm '" + norm + "'");
}

}  // namespace

Spec::Spec(const JsonView& plain) {
  const JsonView config = plain.at("config"), device = config.at("device");
  if (plain.at("graph").is_null()) refuse("this network has no native form");
  seed = config.at("seed").whole("the seed", 0, INT64_MAX);
  params = read_params(plain.at("param_spec"));
  preparation = read_preparation(plain.at("preparation"));
  train = read_train(config);
  half = device.at("storage").text("the storage") == "float16";
  recompute = device.at("recompute").flag("recompute");
  remove_dead = device.at("remove_dead").flag("remove_dead");
  const std::vector<JsonView> graph = plain.at("graph").items("the graph");
  if (graph.size() > MAX_NAMES) refuse("the network has too many nodes");
  for (const JsonView& node : graph) nodes.push_back(read_node(node));
  find_places(*this, graph);
  check_places(params);
}

double TrainSettings::lr_factor(std::int64_t round) const {
  if (round == BEFORE_ROUNDS) return 1;
  if (round < lr_warmup)
    return static_cast<double>(round + 1) / static_cast<double>(lr_warmup + 1);
  if (schedule == Schedule::cosine) {
    const double done =
        static_cast<double>(round - lr_warmup) / static_cast<double>(rounds - lr_warmup);
    return lr_final + (1 - lr_final) * (1 + std::cos(PI * done)) / 2;
  }
  if (schedule == Schedule::constant) return 1;
  const auto passed = std::count_if(milestones.begin(), milestones.end(),
                                    [round](std::int64_t start) { return round >= start; });
  return std::pow(lr_gamma, static_cast<double>(passed));
}

bool TrainSettings::freezes_bn(std::int64_t round) const {
  return round != BEFORE_ROUNDS &&
         static_cast<double>(round) >= std::ceil(freeze_bn * static_cast<double>(rounds));
}

fedtiny_rates TrainSettings::rates(std::int64_t round) const {
  fedtiny_rates found{};
  found.learning_rate = lr * lr_factor(round);
  found.momentum = 0.9;
  found.decay = weight_decay;
  found.rest_decay = decay_norms ? weight_decay : 0;
  found.beta1 = 0.9;
  found.beta2 = 0.999;
  found.epsilon = 1e-8;
  found.proximal = proximal_mu;
  return found;
}

}  // namespace fedtiny::device
