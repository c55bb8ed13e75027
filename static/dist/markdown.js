import{a}from"./chunk-2.js";import"./chunk-5.js";export{a as documentOf};
