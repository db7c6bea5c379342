static int largest_of(const float *logits)
{
    int found = 0;
    for (int i = 1; i < MODEL_CLASSES; ++i)
        if (logits[i] > logits[found])
            found = i;
    return found;
}
