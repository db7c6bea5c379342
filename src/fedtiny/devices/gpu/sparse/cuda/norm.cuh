// Batch norm: sums of tiles in a fixed order become coefficients. 32 channels x 32 parts a block.

struct Norm {
  const float2* part;              // forward sums [device][tile][of]
  const float4* gradient_part;     // backward sums [device][tile][of]
  int tiles, of, channels, first;  // first: channel in `part`
  int which;                       // backward: 1 or 2, which of the sums is this norm's
  float count, epsilon, momentum;
  float* theta;  // [device][values], with the places of this norm's values; -1: it has none
  int values, scale, shift, mean, variance, bias;
  float4* coef;           // [device][coefs], of this norm
  float4* gradient_coef;  // the same, for the gradient
  int coefs;
  float* gradient;    // [device][dense]
  int dense, plain;   // plain: no batch norm, a bias only
  const int* frozen;  // whether batch norm has its running statistics for constants
};

template <int N, class V>
static __device__ __forceinline__ bool summed(const V* part, const Norm& n, double* found) {
  SHARED(double, shared, [N][32][32]);
  const int x = threadIdx.x % 32, y = threadIdx.x / 32, channel = blockIdx.x * 32 + x;
  double sum[N];
#pragma unroll
  for (int k = 0; k < N; k++) sum[k] = 0;
  if (channel < n.channels)
#pragma unroll 4
    for (int t = y; t < n.tiles; t += 32) {
      const V v = part[((size_t)blockIdx.z * n.tiles + t) * n.of + n.first + channel];
      const float* each = (const float*)&v;
#pragma unroll
      for (int k = 0; k < N; k++) sum[k] += each[k];
    }
#pragma unroll
  for (int k = 0; k < N; k++) shared[k][y][x] = sum[k];
  __syncthreads();
  if (y || channel >= n.channels) return false;
#pragma unroll
  for (int k = 0; k < N; k++) {
    found[k] = 0;
    for (int i = 0; i < 32; i++) found[k] += shared[k][i][x];
  }
  return true;
}

KERNEL(norm_forward, Norm, 1024, 1) {
  const Norm& n = args;
  const int device = blockIdx.z, channel = blockIdx.x * 32 + threadIdx.x % 32;
  float* theta = n.theta + (size_t)device * n.values;
  if (n.plain) {
    if (threadIdx.x < 32 && channel < n.channels)
      n.coef[(size_t)device * n.coefs + channel] =
          make_float4(1.f, n.bias < 0 ? 0.f : theta[n.bias + channel], 0.f, 1.f);
    return;
  }
  const bool frozen = *n.frozen && n.mean >= 0;
  double sum[2];
  if (!summed<2>(n.part, n, sum)) return;
  const float bias = n.bias < 0 ? 0.f : theta[n.bias + channel];
  const double found = sum[1] / n.count - (sum[0] / n.count) * (sum[0] / n.count);
  const double mean = frozen ? theta[n.mean + channel] - bias : sum[0] / n.count;
  const double variance = frozen        ? theta[n.variance + channel]
                          : found < 0.0 ? 0.0
                                        : found;  // NaN stays
  const float inverse = (float)(1.0 / sqrt(variance + n.epsilon));
  const float scale = n.scale < 0 ? 1.f : theta[n.scale + channel];
  const float shift = n.shift < 0 ? 0.f : theta[n.shift + channel];
  n.coef[(size_t)device * n.coefs + channel] =
      make_float4(scale * inverse, shift - scale * inverse * (float)mean, (float)mean, inverse);
  if (n.mean < 0 || frozen) return;
  const float seen = (float)mean + bias;
  const float spread = (float)(variance * n.count / (n.count - 1));
  theta[n.mean + channel] += n.momentum * (seen - theta[n.mean + channel]);
  theta[n.variance + channel] += n.momentum * (spread - theta[n.variance + channel]);
}

KERNEL(norm_backward, Norm, 1024, 1) {
  const Norm& n = args;
  const int device = blockIdx.z, channel = blockIdx.x * 32 + threadIdx.x % 32;
  double sum[3];
  if (!summed<3>(n.gradient_part, n, sum)) return;
  float* gradient = n.gradient + (size_t)device * n.dense;
  if (n.plain) {
    if (n.bias >= 0) gradient[n.bias + channel] = (float)sum[0];
    return;
  }
  const double along = n.which == 1 ? sum[1] : sum[2];
  const float4 k = n.coef[(size_t)device * n.coefs + channel];
  const bool frozen = *n.frozen && n.mean >= 0;
  const float m1 = (float)(sum[0] / n.count), m2 = (float)(along / n.count), b = -k.x * m2 * k.w;
  n.gradient_coef[(size_t)device * n.coefs + channel] =
      frozen ? make_float4(k.x, 0.f, 0.f, 0.f) : make_float4(k.x, b, -k.x * m1 - b * k.z, 0.f);
  if (n.scale >= 0) gradient[n.scale + channel] = (float)along;
  if (n.shift >= 0) gradient[n.shift + channel] = (float)sum[0];
  // Batch norm takes a bias out again, unless its statistics are constants.
  if (n.bias >= 0) gradient[n.bias + channel] = frozen ? k.x * (float)sum[0] : 0.f;
}
