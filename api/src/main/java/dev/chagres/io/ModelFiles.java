package dev.chagres.io;

import dev.chagres.Shape;
import dev.chagres.internal.Checks;
import java.util.List;
import java.util.Map;

/**
 * How other programs find a model in a folder: under which names its weights lie, and what lies beside them. A checkpoint of a model that has
 * this is also a folder of that form, such as one of transformers.
 *
 * <p>Threading: immutable.
 */
public interface ModelFiles {
    /**
     * Returns the tensors that hold a parameter's elements, one after another from the first on; they may end before the last element. The
     * type is that of the weight.
     *
     * @param parameter by name
     * @return empty if the model has no such parameter
     */
    List<Named> tensors(String parameter);

    /** Returns further tensors, which no parameter holds. */
    List<TensorSource> constants();

    /** Returns the contents of further files by their names, such as a configuration. */
    Map<String, byte[]> files();

    /**
     * A tensor of a file, by its name.
     *
     * @param shape sizes, outermost first
     */
    record Named(String name, Shape shape) {
        /** Checks that both are there. */
        public Named {
            Checks.given("name", name, "shape", shape);
        }
    }
}
