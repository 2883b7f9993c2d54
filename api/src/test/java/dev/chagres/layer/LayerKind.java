package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Layer;
import dev.chagres.pass.SharedInput;

/** A kind of layer, and how one is made. */
public record LayerKind(String name, Class<? extends Layer> type, Maker maker) {
    /** Makes a layer. */
    public interface Maker {
        Layer make(ModelPlan plan, SharedInput memory, Scope scope);
    }

    @Override
    public String toString() {
        return name;
    }

    /** Returns whether a recipe changes what it computes: products whose sizes are multiples of 16. */
    public boolean multiplies() {
        return attends() || name.contains("MLP") || name.startsWith("linear");
    }

    /** Returns whether it wants sequences, with tokens in them. */
    public boolean attends() {
        return name.contains("attention") || name.contains("transformer") || name.contains("stack");
    }
}
