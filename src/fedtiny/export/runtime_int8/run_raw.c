int model_run_raw(const float *values, float *logits)
{
$clear    load_raw(values, &$image, $zero);
    return compute(logits);
}
