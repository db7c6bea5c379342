// The optimizer, as PyTorch computes Adam and SGD.

struct Segment {      // the kept weights of a convolution, or of several that share their source
  const float* part;  // gradients [device][tiles][room], in the order of the backward pass
  int2 *taps, *back_taps;  // [device][room]
  const int* place;  // [room] by tap of the backward pass, the tap of the forward pass; -1: none
  int tiles, room, first,
      pad;  // first: in a device's theta, from where forward taps have their weights
};
struct Update {
  const Segment* segments;
  float *theta, *gradient, *first, *second;  // [device][values], but gradient [device][dense]
  const float* received;                     // [values] what the devices were sent, for FedProx
  const unsigned char* moves;  // [dense] whether it is trained: 1 a weight, 2 a norm or bias
  const float* rates;          // see the enum
  int values, dense, adam;
};

enum {
  LR,
  DECAY,
  MU,
  FIRST,
  REST_OF_FIRST,
  SECOND,
  REST_OF_SECOND,
  EPSILON,
  STEP,
  SCALE,
  NORM_DECAY
};  // FIRST: beta1 or momentum

static __device__ __forceinline__ float updated(const Update& u, size_t at, size_t place, int j,
                                                float g, float decay) {
  const float* r = u.rates;
  float w = u.theta[place];
  g += decay * w;
  if (r[MU] != 0.f) g += r[MU] * (w - u.received[j]);
  if (u.adam) {
    const float m = u.first[at] + r[REST_OF_FIRST] * (g - u.first[at]);
    const float v = r[SECOND] * u.second[at] + r[REST_OF_SECOND] * g * g;
    u.first[at] = m;
    u.second[at] = v;
    w -= r[STEP] * m / (sqrtf(v) / r[SCALE] + r[EPSILON]);
  } else {
    const float m = r[FIRST] * u.first[at] + g;
    u.first[at] = m;
    w -= r[LR] * m;
  }
  u.theta[place] = w;
  return w;
}

// Grid (blocks of values, 1, devices): parameters of which there is one gradient.
KERNEL(update_dense, Update, 256, 1) {
  const Update& u = args;
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= u.dense || !u.moves[j]) return;
  const size_t at = (size_t)blockIdx.z * u.values + j;
  updated(u, at, at, j, u.gradient[(size_t)blockIdx.z * u.dense + j],
          u.rates[u.moves[j] == 1 ? DECAY : NORM_DECAY]);
}

// Grid (blocks of taps, segments, devices): kept weights, whose gradients lie by tiles; the new
// weight goes to both lists of taps.
KERNEL(update_kept, Update, 256, 1) {
  const Update& u = args;
  const Segment s = u.segments[blockIdx.y];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int place = i < s.room ? s.place[i] : -1;
  if (place < 0) return;
  const float* p = s.part + (size_t)blockIdx.z * s.tiles * s.room + i;
  float sums[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  int t = 0;
#pragma unroll 2
  for (; t + 8 <= s.tiles; t += 8)
#pragma unroll
    for (int q = 0; q < 8; q++) sums[q] += p[(size_t)(t + q) * s.room];
  for (; t < s.tiles; t++) sums[0] += p[(size_t)t * s.room];
  const float g =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  const size_t device = (size_t)blockIdx.z * u.values;
  const float w = updated(u, device + s.first + i, device + s.first + place, s.first + place, g,
                          u.rates[DECAY]);
  s.taps[(size_t)blockIdx.z * s.room + place].y = __float_as_int(w);
  s.back_taps[(size_t)blockIdx.z * s.room + i].y = __float_as_int(w);
}

// Before a training, weights go from theta to the taps. Grid as update_kept's.
KERNEL(spread, Update, 256, 1) {
  const Update& u = args;
  const Segment s = u.segments[blockIdx.y];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int place = i < s.room ? s.place[i] : -1;
  if (place < 0) return;
  const float w = u.theta[(size_t)blockIdx.z * u.values + s.first + place];
  s.taps[(size_t)blockIdx.z * s.room + place].y = __float_as_int(w);
  s.back_taps[(size_t)blockIdx.z * s.room + i].y = __float_as_int(w);
}

struct Tick {
  int* next;      // steps done since the plan was laid down
  double* exact;  // steps done since the training began, lr, beta1, beta2
  float* rates;
  int adam;
};
// Before the update of a step.
KERNEL(tick, Tick, 32, 1) {
  if (threadIdx.x) return;
  *args.next += 1;
  const double count = args.exact[0] += 1;
  if (!args.adam) return;
  args.rates[STEP] = (float)(args.exact[1] / (1.0 - pow(args.exact[2], count)));
  args.rates[SCALE] = (float)sqrt(1.0 - pow(args.exact[3], count));
}
