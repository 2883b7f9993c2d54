package dev.chagres.samples.train;

import java.util.Map;

/**
 * What a report begins with: where and what was trained.
 *
 * <p>Threading: immutable.
 *
 * @param provider {@code cuda} or {@code reference}
 * @param device the device's name
 * @param libraries each library's version by its name
 * @param model the model's size, such as {@code 8M}
 * @param parameters number of trained parameters
 * @param seed what data order, masks and first weights follow from
 */
record RunDescription(
        String provider, String device, Map<String, String> libraries, String model, long parameters, long seed) {
    RunDescription {
        libraries = Map.copyOf(libraries);
    }
}
