package dev.chagres.models.huggingface;

import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import java.util.Set;
import java.util.stream.Stream;

/**
 * The fields about rotation of a configuration of a decoder: those that transformers 4 writes, {@code rope_theta} and {@code rope_scaling}, and
 * {@code rope_parameters} of 5.
 *
 * <p>Threading: immutable.
 *
 * @param context {@code max_position_embeddings}
 */
record RotaryFields(JsonObject json, int context) {
    /** Returns the rotation of heads. */
    RotaryConfig rotary(int headDim) {
        if (headDim % 2 != 0) {
            throw json.refused("head_dim", "an even number of columns, which rotation pairs, not " + headDim);
        }
        if (json.has("rope_scaling") && json.has("rope_parameters")) {
            throw json.refused("rope_scaling", "none, for there is rope_parameters, too");
        }
        partial(json);
        RotaryConfig plain = RotaryConfig.of(headDim);
        String field = json.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
        if (!json.has(field)) {
            return plain.withBase(ModelFields.theta(json, 10_000));
        }
        JsonObject rope = json.object(field);
        partial(rope);
        String type = rope.text("rope_type", rope.text("type", "default"));
        if (rope.has("type") && !rope.text("type", "").equals(type)) {
            throw rope.refused("type", "that of rope_type, " + type);
        }
        RotaryConfig based = plain.withBase(ModelFields.theta(rope, ModelFields.theta(json, 10_000)));
        return switch (type) {
            case "default" -> {
                refuseOthersOf(rope, Set.of());
                yield based;
            }
            case "linear" -> {
                refuseOthersOf(rope, Set.of("factor"));
                yield based.withInterpolation(positive(rope, "factor"));
            }
            case "llama3" -> based.withScaling(llama3(rope));
            default -> throw rope.refused(rope.has("rope_type") ? "rope_type" : "type", "default, linear or llama3");
        };
    }

    private static void partial(JsonObject rope) {
        if (rope.number("partial_rotary_factor", 1) != 1) {
            throw rope.refused("partial_rotary_factor", "1: whole heads are rotated");
        }
    }

    private Llama3Scaling llama3(JsonObject rope) {
        String original = "original_max_position_embeddings";
        refuseOthersOf(rope, Set.of("factor", "low_freq_factor", "high_freq_factor", original));
        double low = positive(rope, "low_freq_factor");
        double high = positive(rope, "high_freq_factor");
        if (high <= low) {
            throw rope.refused("high_freq_factor", "more than low_freq_factor, " + low);
        }
        int positions = ModelFields.size(json.has(original) ? json : rope, original, context);
        return new Llama3Scaling(positive(rope, "factor"), low, high, positions);
    }

    private static double positive(JsonObject rope, String field) {
        double value = rope.number(field, 0);
        if (!(value > 0)) {
            throw rope.refused(field, "a number above 0");
        }
        return value;
    }

    private static void refuseOthersOf(JsonObject rope, Set<String> taken) {
        Set<String> always = Set.of("rope_type", "type", "rope_theta", "partial_rotary_factor");
        rope.fields().keySet().stream()
                .filter(field -> !taken.contains(field) && !always.contains(field) && rope.has(field))
                .findFirst()
                .ifPresent(field -> {
                    throw rope.refused(
                            field,
                            "none with this rope_type, which takes "
                                    + Stream.concat(Stream.of("rope_theta"), taken.stream())
                                            .sorted()
                                            .toList());
                });
    }
}
