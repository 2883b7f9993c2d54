package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.DoubleConsumer;
import java.util.function.DoubleSupplier;
import java.util.function.LongConsumer;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * A state that is saved to go on exactly: named tensors on the device, and named numbers of the host.
 *
 * <p>Threading: the device's thread.
 */
public final class State implements StateOwner {
    /**
     * A number that the host keeps.
     *
     * @param reader returns it
     * @param writer takes a loaded one
     * @param most the largest number that the writer takes; the smallest is 0
     * @param form what its 64 bits say
     */
    public record Number(LongSupplier reader, LongConsumer writer, long most, Form form) {
        /** What the 64 bits of a number say. */
        public enum Form {
            /** A whole number. */
            WHOLE,
            /** A double, by its bits: any but NaN. */
            REAL
        }

        /**
         * Checks that both are there.
         *
         * @throws IllegalArgumentException when most is negative
         */
        public Number {
            Checks.given("reader", reader, "writer", writer, "form", form);
            Numbers.atLeastZero("most", most);
        }

        /**
         * A whole number.
         *
         * @throws IllegalArgumentException when most is negative
         */
        public Number(LongSupplier reader, LongConsumer writer, long most) {
            this(reader, writer, most, Form.WHOLE);
        }

        /** Returns whether the writer takes {@code value}. */
        public boolean takes(long value) {
            return form == Form.REAL ? !Double.isNaN(Double.longBitsToDouble(value)) : value >= 0 && value <= most;
        }

        /** Says which numbers the writer takes. */
        public String expected() {
            return form == Form.REAL ? "the bits of a double that is a number" : "a number from 0 to " + most;
        }
    }

    /** Which values a tensor may have: other values are refused before anything is loaded. */
    public enum Values {
        /** All values of the type. */
        ANY,
        /** Finite numbers from {@link Float#MIN_NORMAL} on, such as scales: the reciprocals of smaller ones may be infinite. */
        POSITIVE,
        /** Numbers from 0 on and infinity, such as largest magnitudes. */
        NOT_NEGATIVE,
        /** Finite numbers from 0 on, such as scales of codes: infinity times a code of 0 is NaN. */
        FINITE_NOT_NEGATIVE;

        /** Returns whether a tensor may have the element {@code value}. */
        public boolean takes(float value) {
            return switch (this) {
                case ANY -> true;
                case POSITIVE -> value >= Float.MIN_NORMAL && value < Float.POSITIVE_INFINITY;
                case NOT_NEGATIVE -> value >= 0;
                case FINITE_NOT_NEGATIVE -> value >= 0 && value < Float.POSITIVE_INFINITY;
            };
        }

        /** Returns which elements a tensor may have, as refusals tell it. */
        public String inWords() {
            return switch (this) {
                case ANY -> "any numbers";
                case POSITIVE -> "finite numbers from " + Float.MIN_NORMAL + " on";
                case NOT_NEGATIVE -> "numbers from 0 on";
                case FINITE_NOT_NEGATIVE -> "finite numbers from 0 on";
            };
        }
    }

    private final Map<String, Tensor> tensors;
    private final Map<String, Values> values;
    private final Map<String, Number> numbers;
    private final Map<String, QuantizedWeight> quantized;
    private final List<CodedState> coded;
    private final List<Runnable> beforeSharing;
    private final List<Runnable> afterLoading;
    private final List<Runnable> lastAfterLoading;
    /** The tensors of a file that are ignored; null if the file must have nothing else. */
    private final @Nullable Predicate<String> leftOut;

    private final Set<String> weightsAlone;
    private final Predicate<String> ofRecipe;
    /** Names of tensors of another recipe that a file has. */
    private final Set<String> ofOtherRecipe;

    private State(Builder builder) {
        tensors = Collections.unmodifiableMap(new LinkedHashMap<>(builder.tensors));
        values = Map.copyOf(builder.values);
        numbers = Collections.unmodifiableMap(new LinkedHashMap<>(builder.numbers));
        quantized = Collections.unmodifiableMap(new LinkedHashMap<>(builder.quantized));
        coded = List.copyOf(builder.coded);
        beforeSharing = List.copyOf(builder.beforeSharing);
        afterLoading = List.copyOf(builder.afterLoading);
        lastAfterLoading = List.copyOf(builder.lastAfterLoading);
        leftOut = builder.leftOut;
        weightsAlone = Set.copyOf(builder.weightsAlone);
        ofRecipe = builder.ofRecipe;
        ofOtherRecipe = Set.copyOf(builder.ofOtherRecipe);
    }

    /** Returns this. */
    @Override
    public State state() {
        return this;
    }

    /**
     * Joins the states of the parts of a program, such as parameters and optimizer.
     *
     * @throws IllegalArgumentException when two have a name in common
     */
    public static State of(State... parts) {
        Builder all = new Builder();
        for (State part : Checks.givenAll("parts", parts)) {
            all.add(part, name -> true);
        }
        return all.build();
    }

    /** Returns the tensors by name, in order. */
    public Map<String, Tensor> tensors() {
        return tensors;
    }

    /**
     * Returns which elements the tensor of this name may have.
     *
     * @throws IllegalArgumentException when there is none
     */
    public Values values(String name) {
        Values present = values.get(Checks.given("name", name));
        if (present == null) {
            throw new IllegalArgumentException("name: expected that of a tensor, got " + name);
        }
        return present;
    }

    /** Returns the numbers by name, in order. */
    public Map<String, Number> numbers() {
        return numbers;
    }

    /** Returns the weights, by name and in order, that exist in eight bits alone: their values are saved, and cast when they are loaded. */
    public Map<String, QuantizedWeight> quantized() {
        return quantized;
    }

    /** Returns which of the tensors are codes and their scales. */
    public List<CodedState> coded() {
        return coded;
    }

    /** Returns whether a file from which this is loaded may have further numbers, which are ignored. */
    public boolean leavesOutNumbers() {
        return leftOut != null;
    }

    /** Returns whether a file from which this is loaded may have a further tensor of this name, which is ignored. */
    public boolean leavesOut(String name) {
        Checks.given("name", name);
        return ofOtherRecipe.contains(name) || leftOut != null && leftOut.test(name);
    }

    /**
     * Returns whether a tensor of this name, here or in a file, belongs to a recipe: a scale or a history. Without the state of parameters,
     * or their weights, this is always false.
     */
    public boolean isOfRecipe(String name) {
        return ofRecipe.test(Checks.given("name", name));
    }

    /**
     * Returns the same without scales and histories, to be loaded from the file of a run with another recipe.
     *
     * @param ignored names of further tensors of such a file, which are ignored
     */
    public State withoutRecipe(List<String> ignored) {
        Builder rest = new Builder();
        rest.add(this, name -> !isOfRecipe(name));
        rest.ofOtherRecipe.addAll(Checks.givenAll("ignored", ignored));
        return rest.build();
    }

    /**
     * Returns the names of weights that are loaded alone, on this rank or on the ranks that shard them: a file may have them in FLOAT32,
     * BFLOAT16 or FLOAT16, and they are converted. Empty for the state of a whole run, which keeps every bit.
     */
    public Set<String> weightsAlone() {
        return weightsAlone;
    }

    /**
     * For sharding: checks that it has only tensors and numbers, since nothing else can be sent to other ranks.
     *
     * @throws IllegalArgumentException when weights exist in eight bits alone
     */
    public void ensureNoneQuantized() {
        if (!quantized.isEmpty()) {
            throw new IllegalArgumentException("state: expected weights that have tensors, which ranks exchange, got "
                    + quantized.keySet().iterator().next()
                    + " that is kept QUANTIZED_ONLY; allocate with another WeightStorage, or save it by"
                    + " Safetensors.save");
        }
    }

    /**
     * For sharding: checks that it is the same on all ranks.
     *
     * @throws IllegalStateException when a part of it is of this rank alone
     */
    public void ensureOfAllRanks() {
        beforeSharing.forEach(Runnable::run);
    }

    /** Called when tensors and numbers have been loaded: recomputes values that are derived from them. */
    public void loaded() {
        afterLoading.forEach(Runnable::run);
        lastAfterLoading.forEach(Runnable::run);
    }

    /** Returns the names with types and shapes. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder();
        tensors.forEach(
                (name, tensor) -> text.append(name).append(' ').append(tensor).append('\n'));
        quantized.forEach((name, weight) ->
                text.append(name).append(' ').append(weight.copies()).append('\n'));
        numbers.forEach((name, number) -> {
            long bits = number.reader.getAsLong();
            text.append(name).append(' ');
            text.append(number.form == Number.Form.REAL ? Double.toString(Double.longBitsToDouble(bits)) : bits);
            text.append('\n');
        });
        return text.toString();
    }

    /**
     * Collects a state.
     *
     * <p>Threading: one thread at a time.
     */
    public static final class Builder {
        private final Map<String, Tensor> tensors = new LinkedHashMap<>();
        private final Map<String, Values> values = new LinkedHashMap<>();
        private final Map<String, Number> numbers = new LinkedHashMap<>();
        private final Map<String, QuantizedWeight> quantized = new LinkedHashMap<>();
        private final List<CodedState> coded = new ArrayList<>();
        private final List<Runnable> beforeSharing = new ArrayList<>();
        private final List<Runnable> afterLoading = new ArrayList<>();
        private final List<Runnable> lastAfterLoading = new ArrayList<>();
        private final Set<String> weightsAlone = new HashSet<>();
        private final Set<String> ofOtherRecipe = new HashSet<>();
        private @Nullable Predicate<String> leftOut;
        private Predicate<String> ofRecipe = name -> false;

        /** Begins an empty state. */
        public Builder() {}

        /**
         * Adds a tensor with any values.
         *
         * @throws IllegalArgumentException when the name is taken
         */
        public Builder tensor(String name, Tensor tensor) {
            return tensor(name, tensor, Values.ANY);
        }

        /**
         * Adds a tensor.
         *
         * @param may the values that it may have; other than ANY only for FLOAT32 and BFLOAT16
         * @throws IllegalArgumentException when the name is taken, or the values of another type are limited
         */
        public Builder tensor(String name, Tensor tensor, Values may) {
            ensureFree(name);
            Checks.given("tensor", tensor);
            boolean limited = tensor.dtype() == DType.FLOAT32 || tensor.dtype() == DType.BFLOAT16;
            if (Checks.given("may", may) != Values.ANY && !limited) {
                throw new IllegalArgumentException(
                        "may: expected ANY for a tensor of " + tensor.dtype() + ", got " + may);
            }
            tensors.put(name, tensor);
            values.put(name, may);
            return this;
        }

        /**
         * Adds a number that the host keeps.
         *
         * @param reader returns it
         * @param writer takes a loaded one
         * @param most the largest number that the writer takes; the smallest is 0
         * @throws IllegalArgumentException when the name is taken, or most is negative
         */
        public Builder number(String name, LongSupplier reader, LongConsumer writer, long most) {
            ensureFree(name);
            numbers.put(name, new Number(reader, writer, most));
            return this;
        }

        /**
         * Adds a double that the host keeps, such as the best loss so far; files have its 64 bits as an INT64. A NaN is saved, but no file
         * with one is loaded.
         *
         * @param reader returns it
         * @param writer takes a loaded one
         * @throws IllegalArgumentException when the name is taken
         */
        public Builder real(String name, DoubleSupplier reader, DoubleConsumer writer) {
            ensureFree(name);
            Checks.given("reader", reader, "writer", writer);
            LongSupplier bits = () -> Double.doubleToRawLongBits(reader.getAsDouble());
            LongConsumer ofBits = value -> writer.accept(Double.longBitsToDouble(value));
            numbers.put(name, new Number(bits, ofBits, Long.MAX_VALUE, Number.Form.REAL));
            return this;
        }

        /**
         * Adds a weight that exists in eight bits alone.
         *
         * @throws IllegalArgumentException when the name is taken
         */
        public Builder quantized(String name, QuantizedWeight weight) {
            ensureFree(name);
            quantized.put(name, Checks.given("weight", weight));
            return this;
        }

        /** Tells that two of the tensors are codes and their scales. */
        public Builder coded(CodedState state) {
            coded.add(Checks.given("state", state));
            return this;
        }

        /** Adds a check that throws when the state belongs to this rank alone, and not to all ranks that train together. */
        public Builder beforeSharing(Runnable check) {
            beforeSharing.add(Checks.given("check", check));
            return this;
        }

        /**
         * Allows files from which this is loaded to have further numbers, and further tensors whose names {@code names} accepts. All of
         * these are ignored.
         */
        public Builder leaveOut(Predicate<String> names) {
            Predicate<String> present = leftOut;
            Checks.given("names", names);
            leftOut = present == null ? names : present.or(names);
            return this;
        }

        /** Allows a file to have weights of these names, which may lie on other ranks, in another floating-point type. */
        public Builder weightsAlone(List<String> names) {
            weightsAlone.addAll(Checks.givenAll("names", names));
            return this;
        }

        /** Sets which names are those of scales and histories, of this recipe or of another. */
        public Builder ofRecipe(Predicate<String> names) {
            ofRecipe = ofRecipe.or(Checks.given("names", names));
            return this;
        }

        /** Adds an action that runs once everything was loaded. */
        public Builder afterLoading(Runnable action) {
            afterLoading.add(Checks.given("action", action));
            return this;
        }

        /** Adds an action that runs once everything was loaded and every {@link #afterLoading} action of every part has run. */
        public Builder lastAfterLoading(Runnable action) {
            lastAfterLoading.add(Checks.given("action", action));
            return this;
        }

        /** Returns the state. */
        public State build() {
            return new State(this);
        }

        /** Adds another state, with those of its tensors whose names {@code which} accepts. */
        private void add(State part, Predicate<String> which) {
            part.tensors.forEach((name, tensor) -> {
                if (which.test(name)) {
                    tensor(name, tensor, part.values(name));
                }
            });
            part.numbers.forEach((name, number) -> {
                ensureFree(name);
                numbers.put(name, number);
            });
            part.quantized.forEach(this::quantized);
            part.coded.forEach(this::coded);
            part.beforeSharing.forEach(this::beforeSharing);
            part.afterLoading.forEach(this::afterLoading);
            part.lastAfterLoading.forEach(this::lastAfterLoading);
            weightsAlone.addAll(part.weightsAlone);
            ofOtherRecipe.addAll(part.ofOtherRecipe);
            ofRecipe(part.ofRecipe);
            if (part.leftOut != null) {
                leaveOut(part.leftOut);
            }
        }

        private void ensureFree(String name) {
            Checks.given("name", name);
            if (tensors.containsKey(name) || numbers.containsKey(name) || quantized.containsKey(name)) {
                throw new IllegalArgumentException("name: expected one of its own, got " + name + " a second time");
            }
        }
    }
}
