// Linear layers in fp32. What a device gets depends on no other one.

struct Linear {
  const float* in;                                          // [device][batch][inputs]
  float* out;                                               // [device][batch][outputs]
  const float* out_gradient;                                // the same
  float* in_gradient;                                       // [device][batch][inputs]
  const float* theta;                                       // [device][values]
  float* gradient;                                          // [device][dense]
  int values, dense, weight, bias, batch, inputs, outputs;  // bias: its place, or -1
};

// A warp for each output. Grid (blocks of outputs, 1, devices).
KERNEL(linear_forward, Linear, 256, 1) {
  const int item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (item >= args.batch * args.outputs) return;
  const int image = item / args.outputs, output = item % args.outputs;
  const float* theta = args.theta + (size_t)blockIdx.z * args.values;
  const float* in = args.in + ((size_t)blockIdx.z * args.batch + image) * args.inputs;
  const float* weight = theta + args.weight + (size_t)output * args.inputs;
  float sum = 0.f;
  for (int i = lane; i < args.inputs; i += 32) sum = fmaf(in[i], weight[i], sum);
  sum = warp_sum(sum);
  if (lane == 0)
    args.out[(size_t)blockIdx.z * args.batch * args.outputs + item] =
        sum + (args.bias < 0 ? 0.f : theta[args.bias + output]);
}

// A thread for each input of each image. Grid (blocks of inputs, 1, devices).
KERNEL(linear_input_gradient, Linear, 256, 1) {
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= args.batch * args.inputs) return;
  const int image = item / args.inputs, input = item % args.inputs;
  const float* weight = args.theta + (size_t)blockIdx.z * args.values + args.weight + input;
  const float* g = args.out_gradient + ((size_t)blockIdx.z * args.batch + image) * args.outputs;
  float sum = 0.f;
  for (int o = 0; o < args.outputs; o++) sum = fmaf(g[o], weight[(size_t)o * args.inputs], sum);
  args.in_gradient[(size_t)blockIdx.z * args.batch * args.inputs + item] = sum;
}

// A thread for each weight, and for each bias. Grid (blocks of weights, 1, devices).
KERNEL(linear_weight_gradient, Linear, 256, 1) {
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= args.outputs * args.inputs) return;
  const int output = item / args.inputs, input = item % args.inputs;
  const float* in = args.in + (size_t)blockIdx.z * args.batch * args.inputs + input;
  const float* g = args.out_gradient + (size_t)blockIdx.z * args.batch * args.outputs + output;
  float* gradient = args.gradient + (size_t)blockIdx.z * args.dense;
  float sum = 0.f, all = 0.f;
  for (int n = 0; n < args.batch; n++) {
    const float each = g[(size_t)n * args.outputs];
    sum = fmaf(each, in[(size_t)n * args.inputs], sum);
    all += each;
  }
  gradient[args.weight + item] = sum;
  if (input == 0 && args.bias >= 0) gradient[args.bias + output] = all;
}
