static void connect(const Layer *layer, const Tensor *in, const Tensor *out, float floor)
{
    Reader reader = read_from_start(layer);
    for (int neuron = 0; neuron < out->channels; ++neuron) {
        float sum = 0.0f;
        for (; reader.place < layer->inputs; advance(&reader))
            sum += (float)*reader.weights++ * in->values[reader.place];
        reader.place -= layer->inputs;
        sum = scale_of(layer, neuron) * sum + bias_of(layer, neuron);
        out->values[neuron] = at_least(floor, sum);
    }
}
