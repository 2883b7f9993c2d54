package dev.chagres.model;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.LongConsumer;
import java.util.function.LongSupplier;

/**
 * What must be saved to go on exactly: named tensors on the device, and named numbers that the host keeps.
 *
 * <p>Threading: the device's thread.
 */
public final class State {
    /**
     * A number that the host keeps.
     *
     * @param reader returns it
     * @param writer takes a loaded one
     * @param most the largest number that the writer takes; the smallest is 0
     */
    public record Number(LongSupplier reader, LongConsumer writer, long most) {
        /**
         * Checks that both are there.
         *
         * @throws IllegalArgumentException when most is negative
         */
        public Number {
            Checks.given("reader", reader);
            Checks.given("writer", writer);
            if (most < 0) {
                throw new IllegalArgumentException("most: expected at least 0, got " + most);
            }
        }

        /** Returns whether the writer takes {@code value}. */
        public boolean takes(long value) {
            return value >= 0 && value <= most;
        }
    }

    private final Map<String, Tensor> tensors;
    private final Map<String, Number> numbers;
    private final List<Runnable> afterLoading;
    private final List<Runnable> lastAfterLoading;

    private State(Builder builder) {
        tensors = Collections.unmodifiableMap(new LinkedHashMap<>(builder.tensors));
        numbers = Collections.unmodifiableMap(new LinkedHashMap<>(builder.numbers));
        afterLoading = List.copyOf(builder.afterLoading);
        lastAfterLoading = List.copyOf(builder.lastAfterLoading);
    }

    /**
     * Joins the states of the parts of a program, such as parameters and optimizer.
     *
     * @throws IllegalArgumentException when two have a name in common
     */
    public static State of(State... parts) {
        Builder all = new Builder();
        for (State part : Checks.givenAll("parts", parts)) {
            part.tensors.forEach(all::tensor);
            part.numbers.forEach((name, number) -> all.number(name, number.reader, number.writer, number.most));
            part.afterLoading.forEach(all::afterLoading);
            part.lastAfterLoading.forEach(all::lastAfterLoading);
        }
        return all.build();
    }

    /** Returns the tensors by name, in order. */
    public Map<String, Tensor> tensors() {
        return tensors;
    }

    /** Returns the numbers by name, in order. */
    public Map<String, Number> numbers() {
        return numbers;
    }

    /** Says that tensors and numbers were loaded: what was derived from them is made again. */
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
        numbers.forEach((name, number) ->
                text.append(name).append(' ').append(number.reader.getAsLong()).append('\n'));
        return text.toString();
    }

    /**
     * Collects a state.
     *
     * <p>Threading: one thread at a time.
     */
    public static final class Builder {
        private final Map<String, Tensor> tensors = new LinkedHashMap<>();
        private final Map<String, Number> numbers = new LinkedHashMap<>();
        private final List<Runnable> afterLoading = new ArrayList<>();
        private final List<Runnable> lastAfterLoading = new ArrayList<>();

        /** Begins an empty state. */
        public Builder() {}

        /**
         * Adds a tensor.
         *
         * @throws IllegalArgumentException when the name is taken
         */
        public Builder tensor(String name, Tensor tensor) {
            ensureFree(name);
            tensors.put(name, Checks.given("tensor", tensor));
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

        /** Adds what is done once everything was loaded. */
        public Builder afterLoading(Runnable action) {
            afterLoading.add(Checks.given("action", action));
            return this;
        }

        /** Adds what is done once everything was loaded and every {@link #afterLoading} of every part has run. */
        public Builder lastAfterLoading(Runnable action) {
            lastAfterLoading.add(Checks.given("action", action));
            return this;
        }

        /** Returns the state. */
        public State build() {
            return new State(this);
        }

        private void ensureFree(String name) {
            Checks.given("name", name);
            if (tensors.containsKey(name) || numbers.containsKey(name)) {
                throw new IllegalArgumentException("name: expected one of its own, got " + name + " a second time");
            }
        }
    }
}
