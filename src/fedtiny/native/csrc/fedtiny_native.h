/* Training of sparse networks: the C interface.
 *
 * Every function that can fail returns 0, or 1 with the reason in fedtiny_last_error() (of this
 * thread); that there is no memory is such a reason, and a network stays usable after it. A network
 * is not to be used by two threads at once. Nothing given is kept after a call.
 *
 * Order of calls: create, prepare (which takes the memory), set every parameter, then any of the
 * rest. Preparing again changes the mask; all parameters are zero then. If preparing fails, the
 * network is as if it had never been prepared.
 *
 * Compiled with FEDTINY_SINGLE_THREAD it needs no threads and no storage of threads: C++17 with
 * exceptions (which stay inside), operator new and calloc are all that it takes, as on a board
 * without a system. Results are the same. */
#ifndef FEDTINY_NATIVE_H
#define FEDTINY_NATIVE_H
#include <stdint.h>

#if defined(__GNUC__)
#define FEDTINY_API __attribute__((visibility("default")))
#else
#define FEDTINY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fedtiny_network fedtiny_network;

enum fedtiny_kind {
  FEDTINY_INPUT = 0,
  FEDTINY_CONVOLUTION = 1,
  FEDTINY_LINEAR = 2,
  FEDTINY_BATCH_NORM = 3,
  FEDTINY_RELU = 4,
  FEDTINY_ADD = 5,
  FEDTINY_MAX_POOL = 6,
  FEDTINY_MEAN_POOL = 7,
  FEDTINY_ADAPTIVE_POOL = 8,
  FEDTINY_FLATTEN = 9,
  FEDTINY_DROPOUT = 10,
  FEDTINY_TRANSPOSED_CONVOLUTION = 11, /* not there, as softmax and what is not named */
  FEDTINY_GROUP_NORM = 12,
  FEDTINY_LAYER_NORM = 13, /* over the channels, at each place */
  FEDTINY_RELU6 = 14,
  FEDTINY_LEAKY_RELU = 15,
  FEDTINY_SILU = 16,
  FEDTINY_HARD_SWISH = 17,
  FEDTINY_HARD_SIGMOID = 18,
  FEDTINY_SIGMOID = 19,
  FEDTINY_TANH = 20,
  FEDTINY_GELU = 21,
  FEDTINY_SOFTMAX = 22,
  FEDTINY_MULTIPLY = 23, /* the second may have one value a channel */
  FEDTINY_CONCAT = 24,   /* of channels */
  FEDTINY_RESHAPE = 25,
  FEDTINY_PERMUTE = 26,
  FEDTINY_UPSAMPLE = 27, /* each value repeated */
  FEDTINY_SLICE = 30     /* of channels */
};

/* One step of a network; the first is its only input, the last returns its logits. */
typedef struct {
  int32_t kind;
  int32_t first, second; /* the nodes that it reads, -1 for none */
  int32_t shared;        /* the node before it whose parameters it uses, -1 for its own */
  int32_t channels;      /* of the input; filters of a layer; of the output of reshape and slice */
  int32_t height, width; /* of the input; of the output of adaptive pool, reshape and upsample */
  int32_t kernel[2], stride[2], padding[2];
  int32_t padding_end[2]; /* padding is before the first row and column, this after the last */
  int32_t dilation[2];    /* convolution */
  int32_t groups;         /* convolution, group norm */
  int32_t bias;           /* convolution, linear: 1 if it has one */
  int32_t count_padding;  /* mean pool: 1 if the padding counts as values */
  int32_t ceil;           /* pools: 1 if the last window may reach beyond the padding */
  int32_t start;          /* slice: its first channel */
  int32_t order[3];       /* permute: which axes of the input the output has */
  int32_t approximate;    /* GELU: 1 if it is worked out by tanh */
  float epsilon;          /* norms */
  float momentum;         /* batch norm: weight of a batch in the running statistics */
  float probability;      /* dropout */
  float slope;            /* leaky ReLU: of what is below zero */
} fedtiny_node;

enum fedtiny_optimizer { FEDTINY_SGD = 0, FEDTINY_ADAM = 1 };

typedef struct {
  int32_t batch;         /* most images of a training step */
  int32_t forward_batch; /* most images of a forward pass */
  int32_t threads;     /* one, if compiled with FEDTINY_SINGLE_THREAD */
  int32_t lanes;       /* 0: the processor's own; else 4, 8 or 16, if it has them or only plans */
  int32_t half;        /* 1: activations and their gradients are held in half precision */
  int32_t recompute;   /* 1: what only batch norm reads is computed again, not held */
  int32_t remove_dead; /* 1: channels that cannot reach the output are left out */
  int32_t optimizer;
  int32_t input_gradient; /* 1: the gradient of the images can be asked for */
  int32_t top_count;      /* most gradients of pruned weights asked of a layer */
  int32_t proximal;       /* 1: a fresh optimizer keeps the values that it starts from */
  int64_t budget;         /* most bytes to take, 0 for no limit */
} fedtiny_options;

/* Bytes, by what they are for; `total` is the arena, all that a network takes beside its nodes. */
typedef struct {
  int64_t total;
  int64_t parameters; /* values, gradients and optimizer state */
  int64_t lists;      /* where kept weights find what they read, forward and backward */
  int64_t statistics; /* of batch norms */
  int64_t activations;
  int64_t scratch;
} fedtiny_memory;

enum fedtiny_parameter {
  FEDTINY_WEIGHT = 0,
  FEDTINY_BIAS = 1,
  FEDTINY_SCALE = 2,
  FEDTINY_SHIFT = 3,
  FEDTINY_RUNNING_MEAN = 4,
  FEDTINY_RUNNING_VAR = 5,
  FEDTINY_BATCH_MEAN = 6,   /* of the last pass with statistics of its own; only to get */
  FEDTINY_BATCH_VAR = 7,    /* not corrected for the number of samples; only to get */
  FEDTINY_CORRECTED_VAR = 8 /* corrected; only to get */
};

typedef struct {
  double learning_rate, momentum;
  double decay, rest_decay; /* of weights; of biases and batch norm */
  double beta1, beta2, epsilon;
  double proximal; /* times the way from the values at the start, added to the gradient */
} fedtiny_rates;

typedef struct {
  double loss; /* summed over the images */
  int64_t correct;
} fedtiny_score;

/* The largest gradients of one layer's pruned weights, or those of given weights, or the sum of its
 * whole gradient. */
typedef struct {
  int32_t node;
  int32_t count;    /* asked for; afterwards, found */
  int32_t* indices; /* room for `count`; filled in order of position */
  float* values;
  float* dense;  /* instead of the above: an array of the layer's size that is added to */
  float* fisher; /* room for a value for each channel read (each input of a linear layer) and each
                    filter: gradients are divided by the root of twice their Fisher information */
  int32_t at_positions; /* 1: `indices` are the weights asked for; only values are filled */
} fedtiny_grad_query;

enum fedtiny_mode {
  FEDTINY_FORWARD = 0,        /* without dropout, with running statistics */
  FEDTINY_OWN_STATISTICS = 1, /* the same with the batch's own statistics */
  FEDTINY_MEASURE = 2,        /* only the gradients asked for; nothing that is kept changes */
  FEDTINY_GRADIENTS = 3,      /* gradients of the mean loss, and running statistics */
  FEDTINY_TRAIN = 4           /* the same, and a step of the optimizer */
};

/* One pass over a batch. A forward pass may do without labels and score. */
typedef struct {
  int32_t mode;
  int32_t query_count;
  fedtiny_grad_query* queries; /* answered for the weights before the step */
  const float* images;
  const int64_t* labels;
  int64_t count;
  uint64_t seed;        /* keys dropout */
  double epsilon;       /* batch norm computes with this epsilon at least */
  float* logits;        /* of a forward pass; may be left out */
  int32_t freeze_norms; /* 1: batch norm has its running statistics in every mode; they stay */
} fedtiny_pass;

FEDTINY_API const char* fedtiny_last_error(void);
FEDTINY_API const char* fedtiny_instructions(void);
/* How many images this processor computes at once: the lanes that a plan for it must name. A batch
 * of at most half as many is computed in half the lanes, but in 8 at least. */
FEDTINY_API int32_t fedtiny_lanes(void);

FEDTINY_API int fedtiny_create(const fedtiny_node* nodes, int32_t count, fedtiny_network** network);
FEDTINY_API void fedtiny_destroy(fedtiny_network* network);

/* Number of values of a parameter; for a weight, kept and pruned together. */
FEDTINY_API int fedtiny_size(const fedtiny_network* network, int32_t node, int32_t parameter,
                             int64_t* size);

/* What preparing would take; nothing is taken. `kept` has a number for each node, -1 for all. */
FEDTINY_API int fedtiny_plan(const fedtiny_network* network, const fedtiny_options* options,
                             const int64_t* kept, fedtiny_memory* memory);
/* `positions` has, for each node that does not keep all, the sorted places of its kept weights. */
FEDTINY_API int fedtiny_prepare(fedtiny_network* network, const fedtiny_options* options,
                                const int64_t* kept, const int32_t* const* positions);
/* What preparing took: what was planned, or with dead channels removed usually less. */
FEDTINY_API int fedtiny_taken(const fedtiny_network* network, fedtiny_memory* memory);

FEDTINY_API int fedtiny_set(fedtiny_network* network, int32_t node, int32_t parameter,
                            const float* values, int64_t count);
FEDTINY_API int fedtiny_get(const fedtiny_network* network, int32_t node, int32_t parameter,
                            double* values, int64_t count);
FEDTINY_API int fedtiny_get_gradient(const fedtiny_network* network, int32_t node,
                                     int32_t parameter, float* values, int64_t count);
FEDTINY_API int fedtiny_get_input_gradient(const fedtiny_network* network, float* values,
                                           int64_t count);

/* A fresh optimizer; with the option `proximal` it holds values near those of now. */
FEDTINY_API int fedtiny_start(fedtiny_network* network, const fedtiny_rates* rates);
FEDTINY_API int fedtiny_run(fedtiny_network* network, const fedtiny_pass* pass,
                            fedtiny_score* score);

#ifdef __cplusplus
}
#endif
#endif
