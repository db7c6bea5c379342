/* The weights of a filter that keeps all of them, or some. */
static void list_weights(const Layer *layer, Reader *reader, int plane)
{
    Kept *kept = kept_weights;
    if (layer->steps) {
        list_kept(layer, reader, plane);
        return;
    }
    for (int channel = 0; channel * layer->taps < layer->inputs; ++channel)
        for (int tap = 0; tap < layer->taps; ++tap, ++kept) {
            kept->offset = layer->offsets[tap] + channel * plane;
            kept->weight = *reader->weights++;
        }
    kept->offset = END;
}
