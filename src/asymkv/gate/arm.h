#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/kv/format.h"

namespace asymkv {

// One column of an admission run: a storage format that answers every case, and how it is read. The letter names the
// pair of formats, F and D a fixed or dynamic scale. Values are stable: they order every table and file.
enum class ArmId : uint8_t {
  kN,   // native keys, native values: the control of every comparison
  kN2,  // native once more, cases rotated within each unit: the noise floor, added by the gate, never asked for
  kNR,  // native from an independent kernel family (the double-precision reference): a second control
  kAF,  // native keys, E4M3 values
  kAD,
  kRF,  // E4M3 keys, native values: the same bytes as A
  kRD,
  kSF,  // E4M3 keys and values
  kSD,
  kQD,  // as SD, and queries in E4M3 too wherever they meet stored keys: a control. One dynamic scale a query and head;
        // no QF, since nothing calibrates fixed scales of queries
  kPF,  // E4M3 keys with their constant bias taken out, E4M3 values
  kPD,
  kID,  // INT8 keys (dynamic only), E4M3 values
  kJD,  // INT8 keys with their constant bias taken out, E4M3 values
};

// Every arm that a user may ask for, in table order (all but kN2).
std::span<const ArmId> all_arms();
// Whether the arm is there to be compared with, never to be served (N, N2, NR, QD).
bool arm_is_control(ArmId arm);

std::string_view arm_name(ArmId arm);  // "N", "N2", "AF", ...
// Any arm, N2 included. Throws Error{kUsage} naming the text and the known names.
ArmId parse_arm(std::string_view name);
// "N,AD,SD" into table order. Throws Error{kUsage} on an unknown or repeated name, on N2, and where N is missing.
std::vector<ArmId> parse_arms(std::string_view list);
// The inverse: "N,AD,SD".
std::string join_arms(std::span<const ArmId> arms);

// The format that the arm stores; `native` is the model's own element type.
KvFormat arm_format(ArmId arm, DType native);
// What queries are rounded to before they meet the arm's stored keys, by round_row; nothing: they stay native.
std::optional<DType> arm_query_dtype(ArmId arm);
std::string_view arm_query(ArmId arm);  // the same in words: "native", "e4m3"
// Whether the arm's cache is written and read by the worker's second, independent kernel family (NR).
bool arm_uses_control_kernels(ArmId arm);
// "K16/V8, dynamic scales", for tables.
std::string arm_description(ArmId arm);

// Whether the arm stores native keys and values (N, N2, NR).
bool arm_is_native(ArmId arm);
// Whether the arm needs a scales file calibrated for the model (AF, RF, SF, PF).
bool arm_needs_fixed_scales(ArmId arm);
// Whether the arm exists only where the keys have a bias and no norm after it (PF, PD, JD).
bool arm_needs_key_bias(ArmId arm);
// The arm that stores the same number of bytes with the sides exchanged (A and R of one scale policy).
std::optional<ArmId> equal_bytes_arm(ArmId arm);

}  // namespace asymkv
