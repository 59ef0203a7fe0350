#include "asymkv/gate/arm.h"

#include <algorithm>
#include <array>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

struct ArmRow {
  ArmId arm;
  std::string_view name;
  std::string_view format;  // alias of parse_kv_format
  ScaleKind scale;          // of the 8-bit sides
  std::string_view description;
};

// In the order of ArmId.
constexpr std::array<ArmRow, 14> kArms = {{
    {ArmId::kN, "N", "native", ScaleKind::kNone, "native keys and values"},
    {ArmId::kN2, "N2", "native", ScaleKind::kNone, "native again, cases rotated (noise floor)"},
    {ArmId::kNR, "NR", "native", ScaleKind::kNone, "native again, independent kernels"},
    {ArmId::kAF, "AF", "k16v8", ScaleKind::kFixed, "K16/V8, fixed scales"},
    {ArmId::kAD, "AD", "k16v8", ScaleKind::kDynamic, "K16/V8, dynamic scales"},
    {ArmId::kRF, "RF", "k8v16", ScaleKind::kFixed, "K8/V16, fixed scales"},
    {ArmId::kRD, "RD", "k8v16", ScaleKind::kDynamic, "K8/V16, dynamic scales"},
    {ArmId::kSF, "SF", "k8v8", ScaleKind::kFixed, "K8/V8, fixed scales"},
    {ArmId::kSD, "SD", "k8v8", ScaleKind::kDynamic, "K8/V8, dynamic scales"},
    {ArmId::kQD, "QD", "k8v8", ScaleKind::kDynamic, "K8/V8 and queries in FP8, dynamic scales (control)"},
    {ArmId::kPF, "PF", "k8v8-prebias", ScaleKind::kFixed, "K8/V8, key bias removed, fixed scales"},
    {ArmId::kPD, "PD", "k8v8-prebias", ScaleKind::kDynamic, "K8/V8, key bias removed, dynamic scales"},
    {ArmId::kID, "ID", "ki8v8", ScaleKind::kDynamic, "INT8 K/V8, dynamic scales"},
    {ArmId::kJD, "JD", "ki8v8-prebias", ScaleKind::kDynamic, "INT8 K/V8, key bias removed, dynamic scales"},
}};

constexpr std::array<ArmId, 13> kAskable = {ArmId::kN,  ArmId::kNR, ArmId::kAF, ArmId::kAD, ArmId::kRF,
                                            ArmId::kRD, ArmId::kSF, ArmId::kSD, ArmId::kQD, ArmId::kPF,
                                            ArmId::kPD, ArmId::kID, ArmId::kJD};

const ArmRow& row(ArmId arm) {
  const auto idx = static_cast<size_t>(arm);
  ASYMKV_CHECK(idx < kArms.size() && kArms[idx].arm == arm, "arm {} has no row", idx);
  return kArms[idx];
}

}  // namespace

std::span<const ArmId> all_arms() {
  return kAskable;
}

bool arm_is_control(ArmId arm) {
  return arm == ArmId::kN || arm == ArmId::kN2 || arm == ArmId::kNR || arm == ArmId::kQD;
}

std::string_view arm_name(ArmId arm) {
  return row(arm).name;
}

ArmId parse_arm(std::string_view name) {
  for (const ArmRow& candidate : kArms) {
    if (candidate.name == name) return candidate.arm;
  }
  throw_usage("unknown arm \"{}\"; known: {}", name, join_arms(kAskable));
}

std::vector<ArmId> parse_arms(std::string_view list) {
  std::vector<ArmId> arms;
  size_t begin = 0;
  while (true) {
    const size_t comma = list.find(',', begin);
    const std::string_view name = list.substr(begin, comma == std::string_view::npos ? comma : comma - begin);
    const ArmId arm = parse_arm(name);
    if (arm == ArmId::kN2) throw_usage("arm N2 is added by the gate itself: leave it out of \"{}\"", list);
    if (std::ranges::find(arms, arm) != arms.end()) throw_usage("arm {} is named twice in \"{}\"", name, list);
    arms.push_back(arm);
    if (comma == std::string_view::npos) break;
    begin = comma + 1;
  }
  std::ranges::sort(arms);
  if (arms.front() != ArmId::kN) {
    throw_usage("arms \"{}\" lack N, the native control that every other arm is compared with: add it", list);
  }
  return arms;
}

std::string join_arms(std::span<const ArmId> arms) {
  std::string list;
  for (const ArmId arm : arms) {
    if (!list.empty()) list += ',';
    list += arm_name(arm);
  }
  return list;
}

KvFormat arm_format(ArmId arm, DType native) {
  const ArmRow& r = row(arm);
  // Native has no 8-bit side, so the policy named here is not used.
  return parse_kv_format(r.format, native, r.scale == ScaleKind::kNone ? ScaleKind::kDynamic : r.scale);
}

std::optional<DType> arm_query_dtype(ArmId arm) {
  return arm == ArmId::kQD ? std::optional(DType::kE4M3) : std::nullopt;
}

std::string_view arm_query(ArmId arm) {
  const std::optional<DType> dtype = arm_query_dtype(arm);
  return dtype ? dtype_name(*dtype) : "native";
}

bool arm_uses_control_kernels(ArmId arm) {
  return arm == ArmId::kNR;
}

std::string arm_description(ArmId arm) {
  return std::string(row(arm).description);
}

bool arm_is_native(ArmId arm) {
  return row(arm).scale == ScaleKind::kNone;
}

bool arm_needs_fixed_scales(ArmId arm) {
  return row(arm).scale == ScaleKind::kFixed;
}

bool arm_needs_key_bias(ArmId arm) {
  return row(arm).format.ends_with("-prebias");
}

std::optional<ArmId> equal_bytes_arm(ArmId arm) {
  switch (arm) {
    case ArmId::kAF:
      return ArmId::kRF;
    case ArmId::kRF:
      return ArmId::kAF;
    case ArmId::kAD:
      return ArmId::kRD;
    case ArmId::kRD:
      return ArmId::kAD;
    default:
      return std::nullopt;
  }
}

}  // namespace asymkv
