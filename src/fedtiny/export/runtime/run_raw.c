int model_run_raw(const float *values, float *logits)
{
$clear    load_raw(values, &$image);
    return compute(logits);
}
