
/* The same for measured values, MODEL_CHANNELS rows of MODEL_WIDTH floats, which are normalised as in
   training. */
int model_run_raw(const float *values, float *logits);
