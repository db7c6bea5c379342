static float logistic(float value)
{
    return 1.0f / (1.0f + expf(-value));
}
