package dev.chagres.trainer;

import java.util.Map;

/**
 * What a report begins with: where, what and how was trained.
 *
 * <p>Threading: immutable.
 *
 * @param provider {@code cuda} or {@code reference}
 * @param device the device's name
 * @param libraries each library's version by its name
 * @param parameters number of trained parameters
 * @param plan everything that the run follows from
 * @param windows how weights are gathered and gradients reduced
 */
record RunDescription(
        String provider,
        String device,
        Map<String, String> libraries,
        long parameters,
        TrainingPlan plan,
        EffectiveWindows windows) {
    RunDescription {
        libraries = Map.copyOf(libraries);
    }
}
