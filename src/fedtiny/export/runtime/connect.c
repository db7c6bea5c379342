static void connect(const Layer *layer, const Tensor *in, const Tensor *out, Range range)
{
    const float *values = row_of(in, 0, 0);
    Reader reader = read_from_start(layer);
    for (int neuron = 0; neuron < out->channels; ++neuron) {
        float sum = 0.0f;
        for (; reader.place < layer->inputs; advance(&reader))
            sum += (float)*reader.weights++ * values[reader.place * in->plane];
        reader.place -= layer->inputs;
        sum = scale_of(layer, neuron) * sum + bias_of(layer, neuron);
        *row_of(out, neuron, 0) = limited(range, sum);
    }
}
