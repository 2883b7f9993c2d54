package dev.chagres.models.huggingface;

/** Fields that configurations of encoders and decoders have, each with its bounds. */
final class ModelFields {
    private ModelFields() {}

    /** Returns how many of something there are, up to 2^24. */
    static int size(JsonObject json, String field, int usual) {
        return json.integer(field, usual, 1, 1 << 24);
    }

    static int layers(JsonObject json, int usual) {
        return json.integer("num_hidden_layers", usual, 1, 100_000);
    }

    /** Returns the longest context, whose rotary table fits into memory whatever a head's size is. */
    static int context(JsonObject json, int usual) {
        return json.integer("max_position_embeddings", usual, 1, 1 << 20);
    }

    static float epsilon(JsonObject json, String field, double usual) {
        float epsilon = (float) json.number(field, usual);
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            throw json.refused(field, "a number above 0");
        }
        return epsilon;
    }

    /** Returns the base of a rotation's frequencies. */
    static double theta(JsonObject json, double usual) {
        double theta = json.number("rope_theta", usual);
        if (!(theta > 1) || theta > 1e12) {
            throw json.refused("rope_theta", "a number above 1 and up to 1e12");
        }
        return theta;
    }

    /** Refuses a field that is true. */
    static void never(JsonObject json, String field, String reason) {
        if (json.flag(field, false)) {
            throw json.refused(field, "false: " + reason);
        }
    }
}
