package dev.chagres.io;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;

/**
 * Name, element type and shape of a tensor in a file.
 *
 * <p>Threading: immutable.
 *
 * @param name any text but {@code "__metadata__"}, which the format reserves, of at most 65,536 characters
 * @param dtype type of the elements
 * @param shape sizes, outermost first
 */
public record TensorSpec(String name, DType dtype, Shape shape) {

    /**
     * Checks the name and the size.
     *
     * @throws IllegalArgumentException when the name is the reserved one, is too long or has half a surrogate pair, when the
     *     format has no such type, or when no long can hold the number of bits
     */
    public TensorSpec {
        Checks.given("dtype", dtype, "shape", shape);
        if (Checks.given("name", name).equals(Names.METADATA)) {
            throw new IllegalArgumentException("name: expected any but " + Names.METADATA
                    + ", under which the format keeps the metadata; give the tensor another name");
        }
        if (name.length() > Names.MAX_LENGTH || !Names.isUnicode(name)) {
            throw new IllegalArgumentException("name: expected at most " + Names.MAX_LENGTH
                    + " characters that UTF-8 can hold, got " + ForeignText.quoted(name));
        }
        try {
            SafetensorsType.of(dtype).byteSize(shape.sizes());
        } catch (ArithmeticException tooMany) {
            throw new IllegalArgumentException(
                    "shape: expected fewer bits than a long can count, got " + dtype + shape, tooMany);
        }
    }

    /** Returns the bytes of all elements. */
    public long byteSize() {
        return SafetensorsType.of(dtype).byteSize(shape.sizes());
    }

    @Override
    public String toString() {
        return ForeignText.quoted(name) + " " + dtype + shape;
    }
}
