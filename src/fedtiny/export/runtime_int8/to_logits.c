static void to_logits(const Tensor *in, float *logits, int zero, float scale)
{
    for (int channel = 0; channel < MODEL_CLASSES; ++channel)
        logits[channel] = (float)(*row_of(in, channel, 0) - zero) * scale;
}
