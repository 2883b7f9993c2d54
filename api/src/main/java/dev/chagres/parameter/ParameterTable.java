package dev.chagres.parameter;

import dev.chagres.Tensor;
import java.util.Locale;

/**
 * A table of parameters: name, shape, type, elements, bytes, and the totals.
 *
 * <p>Threading: the device's thread.
 */
final class ParameterTable {
    private ParameterTable() {}

    static String of(Parameters parameters) {
        StringBuilder text = new StringBuilder();
        for (Parameter parameter : parameters.all()) {
            boolean eight = parameter.isQuantizedOnly();
            Tensor weight = eight ? null : parameter.weight();
            text.append(String.format(
                    Locale.ROOT,
                    "%-48s %-18s %-9s %,15d elements %,15d bytes%s%n",
                    parameter.name(),
                    parameter.shape(),
                    weight == null ? "8 bits" : weight.dtype(),
                    parameter.shape().count(),
                    weight == null ? parameter.shape().count() : weight.byteSize(),
                    (parameter.storage() == WeightStorage.QUANTIZED ? "  quantized" : "")
                            + (eight ? "  quantized only" : "")
                            + (parameter.isFrozen() ? "  frozen" : "")));
        }
        return text
                + String.format(
                        Locale.ROOT,
                        "%d parameters, %,d elements, %,d bytes with gradients",
                        parameters.all().size(),
                        parameters.count(),
                        parameters.byteSize());
    }
}
