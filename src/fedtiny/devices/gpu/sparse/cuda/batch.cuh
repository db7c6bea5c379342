// Batches: cropped, mirrored, normalized, cut out, as a plan says for every sample.

struct Batch {
  const void* pixels;  // [sample][padded height][padded width][channel]
  const long long* labels;
  const int* plan;  // [device][steps][batch][6]: sample, row, column, mirrored, corner of the hole
  const int* next;  // which step
  int steps, batch, channels, height, width, padded_height, padded_width, cutout;
  const float *scale, *shift;
  u32* out;
  long long* out_labels;  // [device][batch]
};

// Grid (pixels, word images, devices).
template <class W, class Pixel>
static __device__ __forceinline__ void fetched(const Batch& b) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x, hw = b.height * b.width;
  if (at >= hw) return;
  const size_t image = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
  const int y = at / b.width, x = at % b.width;
  const Pixel* from[W::N];
  bool hole[W::N];
#pragma unroll
  for (int i = 0; i < W::N; i++) {
    const int sample = blockIdx.y * W::N + i;
    const int* row = b.plan + (((size_t)blockIdx.z * b.steps + *b.next) * b.batch + sample) * 6;
    const int sy = row[1] + y, sx = row[2] + (row[3] ? b.width - 1 - x : x);
    from[i] = (const Pixel*)b.pixels +
              (((size_t)row[0] * b.padded_height + sy) * b.padded_width + sx) * b.channels;
    hole[i] = y >= row[4] && y < row[4] + b.cutout && x >= row[5] && x < row[5] + b.cutout;
    if (at == 0) b.out_labels[(size_t)blockIdx.z * b.batch + sample] = b.labels[row[0]];
  }
  for (int channel = 0; channel < b.channels; channel++) {
    float v[W::N];
#pragma unroll
    for (int i = 0; i < W::N; i++)
      v[i] = hole[i] ? 0.f : (float)from[i][channel] * b.scale[channel] - b.shift[channel];
    b.out[(image * b.channels + channel) * hw + at] = W::pack(v);
  }
}
