/* The last layer, whose sums are the logits but for their scales. */
static void connect_logits(const Layer *layer, const Tensor *in, float *logits)
{
    Reader reader = read_from_start(layer);
    for (int neuron = 0; neuron < MODEL_CLASSES; ++neuron)
        logits[neuron] = (float)sum_of_neuron(layer, neuron, &reader, in) * layer->scales[neuron];
}
