#include "program.h"

#include <algorithm>
#include <cmath>

#include "grow.h"

#ifndef FEDTINY_MAX_EPOCHS
#define FEDTINY_MAX_EPOCHS 10000
#endif

namespace fedtiny::device {
namespace {

constexpr float HOPELESS_LOSS = 1e38f;  // stands for a loss that is not finite

// A program under way.
struct Work {
  Engine& engine;
  const Request& request;
  RngKey key;
  Reply reply;
};

// A verb's options, and which of them it has.
class Options {
 public:
  Options(const JsonView& verb, std::initializer_list<std::string_view> known)
      : name_(verb.at(0, "a verb").text("a verb")), plain_(verb.at(1, "a verb")) {
    for (const JsonView& option : plain_.items("the options of a verb"))
      if (std::find(known.begin(), known.end(), option.key()) == known.end())
        refuse("this device cannot '" + name_ + "' with the option " + std::string(option.key()));
  }

  double number(const char* name) const {
    return plain_.has(name) ? plain_.at(name).number(name) : 0;
  }
  bool flag(const char* name) const { return plain_.has(name) && plain_.at(name).flag(name); }
  std::int64_t whole(const char* name, std::int64_t least, std::int64_t most) const {
    return plain_.at(name).whole(name, least, most);
  }
  bool has(const char* name) const { return plain_.has(name); }
  JsonView at(const char* name) const { return plain_.at(name); }

  std::vector<LayerCount> counts(const ParamSpec& spec) const {
    std::vector<LayerCount> found;
    for (const JsonView& item : plain_.at("counts").items("counts"))
      found.push_back({spec.layer(item.key()), item.whole("a count", 0, 0x7fffffff)});
    return found;
  }

 private:
  std::string name_;
  JsonView plain_;
};

[[noreturn]] void diverged(const RngKey& key, const std::string& what) {
  refuse("training diverged on device " + std::to_string(key.device) + " in round " +
         std::to_string(key.round + 1) + ": its " + what + "; lower --train.lr");
}

template <class Values>
void check_finite(const char* what, const Values& values, const RngKey& key) {
  if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }))
    diverged(key, std::string(what) + " are no longer finite");
}

void train(Work& work, const JsonView& verb) {
  const Options options(verb, {"epochs", "sum_dense_gradients", "extrude"});
  if (options.has("extrude"))
    refuse("native devices cannot extrude weights; use --device-backend torch");
  const ParamSpec& params = work.engine.spec().params;
  std::vector<std::vector<float>> sums;
  if (options.flag("sum_dense_gradients"))
    for (const Tensor& layer : params.prunable)
      sums.emplace_back(static_cast<std::size_t>(layer.size));
  const std::int64_t epochs = options.whole("epochs", 0, FEDTINY_MAX_EPOCHS);
  const double loss = work.engine.train(work.key, epochs, *work.request.theta, sums);
  if (!std::isfinite(loss)) {
    const char* shown = std::isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf";
    diverged(work.key, std::string("loss is ") + shown);
  }
  work.reply.add("loss", loss);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    check_finite("gradients", sums[i], work.key);
    const Tensor& layer = params.prunable[i];
    work.reply.add(float_array(layer.name, layer.shape, sums[i].data()));
  }
  work.reply.theta = work.engine.theta();
  check_finite("weights", work.reply.theta->values, work.key);
  ++work.key.part;
}

void top_gradients(Work& work, const JsonView& verb) {
  const Options options(verb, {"counts", "epsilon", "fisher", "votes"});
  const bool votes = options.flag("votes");
  for (Gradient& own : work.engine.top_gradients(
           work.key, options.counts(work.engine.spec().params), options.number("epsilon"),
           options.flag("fisher"))) {
    check_finite("gradients", own.values, work.key);
    if (votes) {
      Gradient voted{own.layer, {}, {}};
      for (std::size_t i = 0; i < own.values.size(); ++i)
        if (own.values[i] != 0) voted.positions.places.push_back(own.positions.places[i]);
      voted.values.assign(voted.positions.places.size(), 1.0f);
      own = std::move(voted);
    }
    work.reply.add(std::move(own));
  }
}

void prune_and_grow(Work& work, const JsonView& verb) {
  const Options options(verb, {"counts", "epsilon"});
  const ParamSpec& params = work.engine.spec().params;
  const std::vector<LayerCount> counts = options.counts(params);
  const std::vector<Gradient> found =
      work.engine.top_gradients(work.key, counts, options.number("epsilon"), false);
  work.reply.theta = grow_and_drop(work.engine.theta(), found, counts, params);
  work.engine.load(*work.reply.theta);
}

std::vector<Gradient> kept_weights(const std::vector<LayerCount>& layers, const Theta& theta) {
  std::vector<Gradient> found;
  for (const auto& [layer, ignored] : layers) {
    const std::int64_t kept = theta.mask->kept(layer);
    Gradient own{layer, {}, std::vector<float>(static_cast<std::size_t>(kept))};
    for (std::int64_t i = 0; i < kept; ++i)
      own.positions.places.push_back(static_cast<std::int32_t>(
          theta.mask->layers[static_cast<std::size_t>(layer)].at(i)));
    found.push_back(std::move(own));
  }
  return found;
}

void drop_scores(Work& work, const JsonView& verb) {
  const Options options(verb, {"counts", "epsilon"});
  const ParamSpec& params = work.engine.spec().params;
  const Theta theta = work.engine.theta();
  std::vector<Gradient> plain = kept_weights(options.counts(params), theta);
  std::vector<Gradient> scaled = plain;
  work.engine.gradients_at(work.key, plain, options.number("epsilon"), false);
  work.engine.gradients_at(work.key, scaled, options.number("epsilon"), true);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    check_finite("gradients", plain[i].values, work.key);
    check_finite("gradients", scaled[i].values, work.key);
    const float* weights = theta.values.data() + theta.start(plain[i].layer);
    const std::vector<float> scores = drop_gains(weights, plain[i].values, scaled[i].values);
    work.reply.add(float_array(params.prunable[static_cast<std::size_t>(plain[i].layer)].name,
                               {static_cast<std::int64_t>(scores.size())}, scores.data()));
  }
}

// |gradient x weight| of every weight.
void sensitivity(Work& work, const JsonView& verb) {
  const Options options(verb, {});
  const ParamSpec& params = work.engine.spec().params;
  const Theta theta = work.engine.theta();
  std::vector<LayerCount> layers;
  for (int i = 0; i < static_cast<int>(params.prunable.size()); ++i) layers.push_back({i, 0});
  std::vector<Gradient> found = kept_weights(layers, theta);
  work.engine.gradients_at(work.key, found, 0, false);
  for (const Gradient& own : found) {
    check_finite("gradients", own.values, work.key);
    const Tensor& layer = params.prunable[static_cast<std::size_t>(own.layer)];
    const float* weights = theta.values.data() + theta.start(own.layer);
    std::vector<float> scores(static_cast<std::size_t>(layer.size));
    for (std::size_t i = 0; i < own.values.size(); ++i)
      scores[static_cast<std::size_t>(own.positions.places[i])] =
          std::fabs(own.values[i] * weights[i]);
    work.reply.add(float_array(layer.name, layer.shape, scores.data()));
  }
}

void shared_gradients(Work& work, const JsonView& verb) {
  const Options options(verb, {"counts", "epsilon", "seed"});
  const ParamSpec& params = work.engine.spec().params;
  const std::int64_t seed = options.has("seed") ? options.whole("seed", 0, INT64_MAX) : 0;
  std::vector<Gradient> asked = random_pruned(*work.request.theta->mask, options.counts(params),
                                              seed, work.request.round, params);
  work.engine.gradients_at(work.key, asked, options.number("epsilon"), false);
  for (const Gradient& own : asked) {
    check_finite("gradients", own.values, work.key);
    work.reply.add(float_array(params.prunable[static_cast<std::size_t>(own.layer)].name,
                               {static_cast<std::int64_t>(own.values.size())}, own.values.data()));
  }
}

void bn_statistics(Work& work, const JsonView& verb) {
  const Pool pool(work.request, work.engine.spec().params);
  for (Array& array : work.engine.bn_statistics(pool, statistics_order(verb)))
    work.reply.add(std::move(array));
  work.reply.samples = static_cast<std::int64_t>(work.engine.data().development.size());
}

void losses(Work& work, const JsonView& verb) {
  const Options options(verb, {});
  const Pool pool(work.request, work.engine.spec().params);
  std::vector<float> found = work.engine.losses(pool, work.request.arrays);
  for (float& loss : found)
    if (!std::isfinite(loss)) loss = HOPELESS_LOSS;
  work.reply.add(float_array("losses", {pool.size()}, found.data()));
  work.reply.samples = static_cast<std::int64_t>(work.engine.data().development.size());
}

void evaluate(Work& work, const JsonView& verb) {
  const Options options(verb, {});
  const Score score = work.engine.evaluate();
  work.reply.add("loss", score.loss);
  work.reply.add("accuracy", score.accuracy);
}

struct KnownVerb {
  std::string_view name;
  void (*run)(Work&, const JsonView&);
};
constexpr KnownVerb VERBS[] = {
    {"train", train},
    {"top_gradients", top_gradients},
    {"prune_and_grow", prune_and_grow},
    {"drop_scores", drop_scores},
    {"sensitivity", sensitivity},
    {"shared_gradients", shared_gradients},
    {"bn_statistics", bn_statistics},
    {"losses", losses},
    {"evaluate", evaluate},
};

const KnownVerb& known(const Request& request, const JsonView& verb) {
  const std::string_view name = verb.at(0, "a verb").text("a verb");
  for (const KnownVerb& own : VERBS)
    if (own.name == name) return own;
  refuse("a device without Python cannot '" + std::string(name) + "', which method '" +
         request.method + "' asks for");
}

}  // namespace

StatisticsOrder statistics_order(const JsonView& verb) {
  const Options options(verb, {"batch_size", "passes", "second_moment"});
  StatisticsOrder order;
  order.batch = options.whole("batch_size", 1, 1 << 20);
  order.passes = options.has("passes") ? options.whole("passes", 1, FEDTINY_MAX_EPOCHS) : 1;
  order.square = options.has("second_moment") &&
                 options.at("second_moment").text("second_moment") == "square";
  return order;
}

Reply run_program(Engine& engine, const Request& request, std::int64_t device) {
  Work work{engine, request, {engine.spec().seed, request.round, device, 0}, {}};
  work.reply.device = device;
  work.reply.samples = static_cast<std::int64_t>(engine.data().indices.size());
  const std::vector<JsonView> verbs = request.program().items("a program");
  for (const JsonView& verb : verbs) known(request, verb);
  engine.load(*request.theta);
  for (const JsonView& verb : verbs) known(request, verb).run(work, verb);
  return std::move(work.reply);
}

}  // namespace fedtiny::device
